#include "server/scheduler/refusal.h"

#include <algorithm>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace attnd::server {
namespace {

constexpr char kRetryPushbackUrl[] = "attnd.v1/grpc-retry-pushback-ms";
constexpr char kRefusalUrl[] = "attnd.v1/refusal";

absl::optional<int64_t> NumberOf(const absl::Status& status, const char* url) {
  const absl::optional<absl::Cord> payload = status.GetPayload(url);
  int64_t number = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &number)) {
    return absl::nullopt;
  }
  return number;
}

}  // namespace

void SetRetryPushbackMs(absl::Status& status, int64_t pushback_ms) {
  status.SetPayload(kRetryPushbackUrl, absl::Cord(absl::StrCat(pushback_ms)));
}

absl::optional<int64_t> RetryPushbackMs(const absl::Status& status) {
  return NumberOf(status, kRetryPushbackUrl);
}

void SetRefusal(absl::Status& status, Refusal why) {
  status.SetPayload(kRefusalUrl, absl::Cord(absl::StrCat(static_cast<int>(why))));
}

absl::optional<Refusal> RefusalOf(const absl::Status& status) {
  const absl::optional<int64_t> why = NumberOf(status, kRefusalUrl);
  if (!why.has_value()) return absl::nullopt;
  return static_cast<Refusal>(*why);
}

int64_t ToPushbackMs(Duration wait) {
  return std::clamp<int64_t>((ToMicroseconds(wait) + 999) / 1000, 1, 60'000);
}

}  // namespace attnd::server
