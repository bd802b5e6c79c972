// When a failed try is tried again. Pure: the clock and the random number come from outside.
#ifndef ATTND_CLIENT_RETRY_H_
#define ATTND_CLIENT_RETRY_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "client/client.h"
#include "kernels/sync.h"

namespace attnd::client {

// Longer than any queue of a server that means to be asked again.
inline constexpr absl::Duration kMaxPushback = absl::Minutes(1);

// The value of the trailer grpc-retry-pushback-ms. What is not a number counts as negative,
// "never", as gRPC has it.
int64_t ParsePushbackMs(absl::string_view trailer);

// What is known when a try has failed.
struct FailedTry {
  absl::StatusCode code = absl::StatusCode::kUnknown;
  bool has_version_trailer = false;  // attnd itself answered
  absl::optional<int64_t> pushback_ms;
  int tries = 1;  // so far, this one included
  absl::Duration deadline_left = absl::InfiniteDuration();
};

// How long to wait before the next try; nullopt: there is none. `random` is in [0, 1). The rules
// are those of attnd::Client; the budget comes after them (RetryBudget).
absl::optional<absl::Duration> RetryWait(const ClientOptions& options, const FailedTry& failed,
                                         double random);

// Tokens: each call brings `ratio`, each retry takes 1. Thread-safe.
class RetryBudget {
 public:
  explicit RetryBudget(double ratio) : ratio_(ratio) {}

  void OnCall() ABSL_LOCKS_EXCLUDED(mutex_);
  // False, and nothing is taken, when less than one token is left.
  bool TakeRetry() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  static constexpr double kReserve = 10;  // a young client's first failures
  static constexpr double kMost = 100;    // a long good time does not pay for a long flood

  const double ratio_;
  Mutex mutex_;
  double tokens_ ABSL_GUARDED_BY(mutex_) = kReserve;
};

}  // namespace attnd::client

#endif  // ATTND_CLIENT_RETRY_H_
