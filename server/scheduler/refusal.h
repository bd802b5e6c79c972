// Statuses that refuse a request, and what they carry beside their message.
#ifndef ATTND_SERVER_SCHEDULER_REFUSAL_H_
#define ATTND_SERVER_SCHEDULER_REFUSAL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "server/clock.h"
#include "server/metrics/metrics.h"

namespace attnd::server {

// When to try again, in milliseconds; negative: never. The service turns it into the trailer
// grpc-retry-pushback-ms.
void SetRetryPushbackMs(absl::Status& status, int64_t pushback_ms);
absl::optional<int64_t> RetryPushbackMs(const absl::Status& status);

// Why the scheduler refused, for its metric.
void SetRefusal(absl::Status& status, Refusal why);
absl::optional<Refusal> RefusalOf(const absl::Status& status);

// The wait as a pushback: 1 ms to a minute, beyond which no deadline is by default.
int64_t ToPushbackMs(Duration wait);

}  // namespace attnd::server

#endif  // ATTND_SERVER_SCHEDULER_REFUSAL_H_
