// A call whose caller waits for it.
#ifndef ATTND_CLIENT_WAITED_CALL_H_
#define ATTND_CLIENT_WAITED_CALL_H_

#include <chrono>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "client/call.h"
#include "client/client.h"
#include "client/encode.h"
#include "client/local_regions.h"
#include "client/ways.h"

namespace attnd::client {

// Client::Start's. `regions` outlives it.
class WaitedCall final : public StartedCall {
 public:
  WaitedCall(std::shared_ptr<Core> core, LocalRegions& regions, AttentionRequest request,
             Progress progress);
  ~WaitedCall() override;

  void Cancel() override { call_.Cancel(); }
  absl::optional<absl::StatusOr<AttentionResult>> WaitFor(absl::Duration timeout) override;
  Failure failure() const override { return failure_; }

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  class Waiter;

  void StartCall(const AttentionRequest& request);
  // Of the call of gRPC's that is under way.
  absl::optional<absl::StatusOr<AttentionResult>> WaitUntil(TimePoint until);

  const std::shared_ptr<Core> core_;
  const AttentionRequest request_;
  const Progress progress_;
  const TimeLeft time_;
  SwitchedCall call_;

  // Of the thread that waits.
  std::unique_ptr<StagedCall> staged_;  // null: the tensors go from where they lie
  std::shared_ptr<ComputeCall> now_;
  std::shared_ptr<Waiter> waiter_;
  absl::Status refusal_;  // what ended it before there was a call of gRPC's
  Failure failure_;
  bool ended_ = false;
};

}  // namespace attnd::client

#endif  // ATTND_CLIENT_WAITED_CALL_H_
