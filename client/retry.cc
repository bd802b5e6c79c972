#include "client/retry.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"

namespace attnd::client {
namespace {

// Whether the kind of failure allows another try.
bool IsRetryable(const FailedTry& failed) {
  switch (failed.code) {
    case absl::StatusCode::kUnavailable:
      return true;
    case absl::StatusCode::kResourceExhausted:
      return failed.pushback_ms.has_value();
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
      return !failed.has_version_trailer;
    default:
      return false;
  }
}

}  // namespace

int64_t ParsePushbackMs(absl::string_view trailer) {
  int64_t pushback_ms = 0;
  return absl::SimpleAtoi(trailer, &pushback_ms) ? pushback_ms : -1;
}

absl::optional<absl::Duration> RetryWait(const ClientOptions& options, const FailedTry& failed,
                                         double random) {
  if (!IsRetryable(failed) || failed.tries >= options.max_tries) return absl::nullopt;
  absl::Duration wait;
  if (failed.pushback_ms.has_value()) {
    if (*failed.pushback_ms < 0) return absl::nullopt;
    wait = absl::Milliseconds(*failed.pushback_ms);
    if (wait > kMaxPushback) return absl::nullopt;
  } else {
    const absl::Duration backoff = options.first_backoff * std::exp2(failed.tries - 1);
    wait = std::min(backoff, options.max_backoff) * (0.8 + 0.4 * random);
  }
  if (wait >= failed.deadline_left) return absl::nullopt;
  return wait;
}

void RetryBudget::OnCall() {
  MutexLock lock(mutex_);
  tokens_ = std::min(kMost, tokens_ + ratio_);
}

bool RetryBudget::TakeRetry() {
  MutexLock lock(mutex_);
  // 1e-9: ten times 0.1 is a whole token.
  if (tokens_ < 1 - 1e-9) return false;
  tokens_ -= 1;
  return true;
}

}  // namespace attnd::client
