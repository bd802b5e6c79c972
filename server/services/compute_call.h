// What calls of Compute and of ComputeStream have in common, from first header to last byte: all
// but how the request's bytes come and the answer's go.
#ifndef ATTND_SERVER_SERVICES_COMPUTE_CALL_H_
#define ATTND_SERVER_SERVICES_COMPUTE_CALL_H_

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "kernels/sync.h"
#include "server/job.h"
#include "server/memory/receive_budget.h"
#include "server/scheduler/scheduler.h"
#include "server/services/call_facts.h"
#include "server/services/compute_parts.h"
#include "server/services/deadline_watch.h"
#include "server/services/io_lane.h"
#include "server/services/raw_call.h"
#include "server/services/worker_pool.h"

namespace attnd::server {

// A call is handled as a raw stream, so that nothing of a message is read before there is a permit
// for it, unary calls included: on the wire they are the same.
//
// The call has one owner at a time, and the owner alone ends it:
//
//   receive budget --granted--> gRPC's reads --a message--> a worker, which reads on, or at the end
//     --Submit--> the Job (scheduler, executor) --done--> SendAnswer or End
//
// Cancellation and deadlines do not end a call themselves, they make the owner do it: a call that
// waits for its permit is taken out of the budget, which makes the taker the owner; a read or write
// ends by itself when gRPC cancels the call; a decoder looks at cancelled_; a job ends through
// Scheduler::Cancel. There are two exceptions, while gRPC reads: the server's own deadline, and a
// chunk that is copied meanwhile and is wrong. They and the read settle under mutex_ who owns.
//
// gRPC keeps the call until OnDone; so does whoever may still call back into it.
class ComputeCall : public RawCall, public std::enable_shared_from_this<ComputeCall> {
 public:
  // Admits `call`, or ends it.
  static void Start(const std::shared_ptr<ComputeCall>& call);

 protected:
  ComputeCall(const ComputeParts& parts, std::unique_ptr<RawStream> stream)
      : RawCall(std::move(stream)), parts_(parts) {}

  // The owner from here on is the callee, on its connection's thread, which must not be kept: a
  // message is in message_; the caller has closed its side.
  virtual void OnMessage() = 0;
  virtual void OnCallerClosed() = 0;
  // The job is done; the last owner. Called on the executor's thread.
  virtual void SendAnswer(const Request& request, Answer answer) = 0;
  // As metrics name it.
  virtual const char* transport() const = 0;
  // Gives back what was received. By the owner, or with the call's end.
  virtual void Drop() = 0;
  // Messages of the declared size that the call may hold.
  virtual int64_t messages_at_once() const { return 1; }

  // By the owner, who is none any more: the next message, or the caller's end, comes.
  void ReadOn();
  // By who is not the owner, while gRPC reads or is about to: ends the call with `why` in the
  // reader's place. Where a message is there already, whoever has it sees to the end.
  void StopReading(const absl::Status& why);
  // Nothing more is received; the server's own deadline is watched no more.
  void ReceivedAll();
  // OK, or INVALID_ARGUMENT if message_ is larger than was declared.
  absl::Status CheckDeclared() const;
  // The steps of request_steps.h.
  absl::Status CompleteRequest(Request& request) const;
  absl::Status WhenRoom(const std::function<int64_t()>& needed_bytes, TimePoint deadline,
                        const std::function<absl::Status()>& attempt) const;
  void Submit(std::unique_ptr<Request> request);
  // Runs `task`, which ends the call or hands it on, on a worker; ends it if too many wait.
  void Post(WorkerPool& workers, std::function<void()> task);
  // On a sender: writing to a socket is not the executor's work.
  void PostSend(std::function<void()> send);

  // Ends the call; by its owner only.
  void End(const absl::Status& status, Stage stage);
  // The first of its calls counts.
  void CountReceived(int64_t payload_bytes);
  absl::Status Gone() const;
  // Of a call whose answer goes out.
  grpc::Status CountedOk();

  const ComputeParts& parts_;
  // gRPC's or the server's default, whichever is first; the message may bring an earlier one.
  TimePoint deadline_ = kNever;
  ReceivePermit permit_;
  QueuePlace place_;          // until it is in the queue
  grpc::ByteBuffer message_;  // received last
  grpc::ByteBuffer outgoing_;

 private:
  // kIdle: it waits for its permit, or somebody has a message; kAsking: a read is being asked for;
  // kExpired: it was ended in the reader's place.
  enum class Phase { kIdle, kAsking, kReading, kExpired };

  void OnReadDone(bool ok) final;
  void OnCancel() final;
  void OnDone() final;

  void Admit();
  void WatchDeadline(TimePoint grpc_deadline, TimePoint now);
  void Granted(ReceivePermit permit);
  void ReceiveDeadlinePassed();
  void JobDone(const Job& job, absl::StatusOr<Answer> answer, Stage stage);

  std::shared_ptr<ComputeCall> self_;  // until OnDone
  TimePoint begun_{};
  DeadlineWatch::Entry watched_;
  bool inside_gate_ = false;
  IoLane* lane_ = nullptr;  // that expects its message
  Caller caller_;
  // Also the size of the permit.
  int64_t declared_bytes_ = 0;
  std::atomic<uint64_t> ticket_{0};
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> counted_received_{false};
  Timing timing_;  // of the answer, with ...
  int64_t batch_size_ = 0;

  mutable Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kIdle;
  // Reads that were asked for; tells one that ended at once from the next.
  int64_t reads_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status stop_ ABSL_GUARDED_BY(mutex_);  // not OK: nothing more is to be read, for this
  // Weak: the job holds the call.
  std::weak_ptr<Job> job_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_COMPUTE_CALL_H_
