// What all kinds of calls do before and after gRPC: the way a request takes, and its answer.
#ifndef ATTND_CLIENT_WAYS_H_
#define ATTND_CLIENT_WAYS_H_

#include <chrono>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "client/call.h"
#include "client/client.h"
#include "client/encode.h"
#include "client/local_regions.h"
#include "kernels/sync.h"

namespace attnd::client {

// What remains of a call's time.
class TimeLeft {
 public:
  explicit TimeLeft(absl::optional<absl::Duration> timeout)
      : begin_(std::chrono::steady_clock::now()), timeout_(timeout) {}
  absl::optional<absl::Duration> left() const {
    if (!timeout_) return absl::nullopt;
    return *timeout_ - absl::FromChrono(std::chrono::steady_clock::now() - begin_);
  }

 private:
  const std::chrono::steady_clock::time_point begin_;
  const absl::optional<absl::Duration> timeout_;
};

// The request in a region of the client's; null: its tensors are not to be copied into one, or
// cannot be and need not. INVALID_ARGUMENT as CheckTensors; where it must be a region, errors of
// LocalRegions::Take.
absl::StatusOr<std::unique_ptr<StagedCall>> Stage(LocalRegions& regions,
                                                  const AttentionRequest& request,
                                                  const TimeLeft& time);

// Whether a call through the client's own region is to go another way after it ended like this: the
// server that knew the region is gone.
bool GoesAnotherWay(const AttentionRequest& request, const absl::Status& status);

absl::StatusOr<AttentionResult> Decode(const ExpectedAnswer& expected, const Reply& reply);

// Whether the reply may be decoded on gRPC's own thread: it lies in this processor's cache, and
// another thread would wake up tens of microseconds later.
bool IsShort(const Reply& reply);

// One call of gRPC's after another, to be cancelled as one. Thread-safe.
class SwitchedCall : public Call {
 public:
  void Cancel() override ABSL_LOCKS_EXCLUDED(mutex_);
  void SwitchTo(const std::shared_ptr<Call>& next) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Mutex mutex_;
  std::shared_ptr<Call> now_ ABSL_GUARDED_BY(mutex_);  // null: none yet
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace attnd::client

#endif  // ATTND_CLIENT_WAYS_H_
