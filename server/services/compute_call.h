// One call of Compute, from its first header to its last byte.
#ifndef ATTND_SERVER_SERVICES_COMPUTE_CALL_H_
#define ATTND_SERVER_SERVICES_COMPUTE_CALL_H_

#include <grpcpp/alarm.h>
#include <grpcpp/generic/async_generic_service.h>

#include <atomic>
#include <memory>
#include <string>

#include "kernels/sync.h"
#include "server/executor/dispatcher.h"
#include "server/job.h"
#include "server/memory/buffer_pool.h"
#include "server/memory/receive_budget.h"
#include "server/metrics/metrics.h"
#include "server/scheduler/scheduler.h"
#include "server/services/call_gate.h"
#include "server/services/worker_pool.h"
#include "server/wire/wire.h"

namespace attnd::server {

// What the calls use of the server. All of it outlives them.
struct ComputeParts {
  Clock* clock = nullptr;
  Metrics* metrics = nullptr;
  CallGate* gate = nullptr;
  ReceiveBudget* receive_budget = nullptr;
  BufferPool* payload_pool = nullptr;
  // The executor's; only its budget is read here.
  const BufferPool* answer_pool = nullptr;
  Dispatcher* dispatcher = nullptr;
  WorkerPool* decoders = nullptr;
  WorkerPool* senders = nullptr;
  wire::Limits limits;
  // 0: none.
  int64_t default_deadline_ms = 0;
};

// The unary method, handled as a raw stream: on the wire it is the same, but nothing of the message
// is read before there is a permit for it.
//
// The call has one owner at a time, and the owner alone ends it:
//
//   receive budget --granted--> gRPC's reads --the message, then its end--> a decoder thread
//     --Submit--> the Job (scheduler, executor) --done--> End
//
// Cancellation and deadlines do not end a call themselves, they make the owner do it: a call that
// waits for its permit is taken out of the budget, which makes the taker the owner; a read ends by
// itself when gRPC cancels the call; a decoder looks at cancelled_; a job ends through
// Scheduler::Cancel. There is one exception, the server's own deadline while gRPC reads: the alarm
// and the read settle under mutex_ who owns.
//
// gRPC keeps the call until OnDone; so does whoever may still call back into it.
class ComputeCall final : public grpc::ServerGenericBidiReactor,
                          public std::enable_shared_from_this<ComputeCall> {
 public:
  // The reactor that gRPC wants, already admitted or ended.
  static grpc::ServerGenericBidiReactor* Start(const ComputeParts& parts,
                                               grpc::GenericCallbackServerContext* context);

  ComputeCall(const ComputeParts& parts, grpc::GenericCallbackServerContext* context);

  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  enum class Phase { kWaiting, kReading, kRead, kExpired };

  void Admit();
  void ArmAlarm(TimePoint grpc_deadline, TimePoint now);
  void Rang(bool rang);
  void Granted(ReceivePermit permit);
  void ReceiveDeadlinePassed();
  void MessageComplete();
  void Decode();
  absl::StatusOr<std::unique_ptr<Request>> DecodeWhenRoom(const grpc::ByteBuffer& message);
  absl::Status CheckServable(const Request& request) const;
  void Submit(std::unique_ptr<Request> request);
  void JobDone(const Job& job, absl::StatusOr<Answer> answer, Stage stage);
  void Send(grpc::ByteBuffer message);

  // Ends the call; by its owner only.
  void End(const absl::Status& status, Stage stage);
  void CountReceived(int64_t payload_bytes);
  absl::Status WhyGone() const;

  const ComputeParts& parts_;
  grpc::GenericCallbackServerContext* const context_;
  std::shared_ptr<ComputeCall> self_;        // until OnDone
  std::shared_ptr<ComputeCall> alarm_self_;  // until Rang
  bool inside_gate_ = false;
  // Also the size of the permit.
  int64_t declared_bytes_ = 0;
  // gRPC's or the server's default, whichever is first; the message may bring an earlier one.
  TimePoint deadline_ = kNever;
  TimePoint arrival_{};
  std::atomic<uint64_t> ticket_{0};
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> counted_received_{false};
  bool has_message_ = false;
  ReceivePermit permit_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer beyond_;  // where a second message would go
  grpc::ByteBuffer answer_;

  mutable Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kWaiting;
  bool receive_deadline_passed_ ABSL_GUARDED_BY(mutex_) = false;
  // Weak: the job holds the call.
  std::weak_ptr<Job> job_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_COMPUTE_CALL_H_
