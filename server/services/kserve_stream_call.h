// One call of the Open Inference Protocol's ModelStreamInfer.
#ifndef ATTND_SERVER_SERVICES_KSERVE_STREAM_CALL_H_
#define ATTND_SERVER_SERVICES_KSERVE_STREAM_CALL_H_

#include <atomic>
#include <deque>
#include <memory>
#include <utility>

#include "kernels/sync.h"
#include "server/job.h"
#include "server/memory/receive_budget.h"
#include "server/services/call_facts.h"
#include "server/services/compute_parts.h"
#include "server/services/raw_call.h"
#include "server/wire/kserve.h"

namespace attnd::server {

// Memory for messages of such streams: a part of the receive budget, so that streams whose callers
// are silent, for hours if they like, leave the rest to calls.
struct StreamShares {
  // Half of `receive_bytes`. Nobody waits for a share: those who have one may keep it for ever.
  explicit StreamShares(int64_t receive_bytes)
      : budget(receive_bytes / 2, 0), undeclared_bytes(receive_bytes / 64) {}

  ReceiveBudget budget;
  // Of a stream that declares no size.
  const int64_t undeclared_bytes;
};

// Many requests, one after the other; each has a turn, from its message to its answer:
//
//   permit for one message, until the call's end
//     -> a message -> decoded -> Submit -> its job -> ready ... the turns before it are over ->
//     sent
//          ^------------------------|  the next one is read meanwhile, up to kMaxTurns under way
//
// A request that fails is answered with its error, in its turn, and the stream goes on. The call
// ends when its caller has closed its side and every turn is over; when the server drains, after
// the turns that are under way. Each request is counted as a call of its own; the call itself is
// not, unless it is refused.
//
// Invariants.
//  1. The first turn that is not over is the first in turns_; answers leave in this order.
//  2. One thread at a time asks gRPC for something (asking_); whoever changes the state while it
//     does leaves the next thing to it. So nothing is asked for after the call's end.
class KserveStreamCall final : public RawCall,
                               public std::enable_shared_from_this<KserveStreamCall> {
 public:
  static constexpr size_t kMaxTurns = 16;

  // Admits a call, or ends it. `parts` and `shares` outlive it.
  static void Start(const ComputeParts& parts, StreamShares& shares,
                    std::unique_ptr<RawStream> stream);

 private:
  // One request's. Whoever works on it owns it, until it is ready; then it is the call's.
  struct Turn {
    explicit Turn(ShmOfCall shm) : inference(std::move(shm)) {}

    wire::Inference inference;
    TimePoint arrival{};
    TimePoint deadline = kNever;
    bool inside_gate = false;
    bool counted_received = false;
    wire::Inference::SharedOutputs shared_outputs;
    grpc::ByteBuffer message;  // of the answer, or of the error
    bool is_answer = false;
    Timing timing;  // of the answer, with ...
    int64_t batch_size = 0;
    // Under the call's mutex, as these may be looked at before it is the call's.
    bool is_ready = false;
    std::weak_ptr<Job> job;
  };
  using TurnPtr = std::shared_ptr<Turn>;
  enum class Step { kNone, kRead, kWrite, kDrop, kFinish };

  KserveStreamCall(const ComputeParts& parts, StreamShares& shares,
                   std::unique_ptr<RawStream> stream)
      : RawCall(std::move(stream)), parts_(parts), shares_(shares) {}

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void Admit();
  absl::Status TakeShare();
  void Granted(ReceivePermit permit);
  // No more is read; the call ends with `why` when the turns are over.
  void StopReading(const absl::Status& why);

  // The message in message_, from here to Submit.
  void TakeMessage();
  absl::Status CheckMessage() const;
  absl::StatusOr<std::unique_ptr<Request>> DecodeOnce(Turn& turn, int64_t max_shared_bytes);
  void Decode(const TurnPtr& turn);
  void Decoded(const TurnPtr& turn, absl::StatusOr<std::unique_ptr<Request>> request);
  void Submit(const TurnPtr& turn, std::unique_ptr<Request> request);
  void JobDone(const TurnPtr& turn, const Request& request, absl::StatusOr<Answer> answer,
               Stage stage);
  // Outputs that go to shared memory; then it is ready, or has failed.
  void Place(Turn& turn);

  void Fail(Turn& turn, const absl::Status& status, Stage stage);
  void CountReceived(Turn& turn, int64_t payload_bytes);
  void Ready(Turn& turn);

  // Does what there is to do next, until there is nothing.
  void Advance();
  Step NextStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of the first turn.
  void Write(Turn& turn);
  void Drop(Turn& turn);
  TurnPtr TakeFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Over(Turn& turn);
  absl::Status Gone() const;
  absl::Status WhyEnded() const;

  const ComputeParts& parts_;
  StreamShares& shares_;
  std::shared_ptr<KserveStreamCall> self_;  // until OnDone
  Caller caller_;
  TimePoint begun_{};
  TimePoint deadline_ = kNever;  // gRPC's
  int64_t declared_bytes_ = 0;
  ReceivePermit share_;
  std::atomic<uint64_t> ticket_{0};
  std::atomic<bool> cancelled_{false};
  grpc::ByteBuffer message_;  // gRPC's while it reads, then the decoding turn's

  mutable Mutex mutex_;
  ReceivePermit permit_ ABSL_GUARDED_BY(mutex_);
  std::deque<TurnPtr> turns_ ABSL_GUARDED_BY(mutex_);  // not over yet
  bool may_read_ ABSL_GUARDED_BY(mutex_) = false;      // it has its permit
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;       // message_ is in use
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool asking_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;    // nothing more is read
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;    // nothing more can be written
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // its status has been asked for
  absl::Status end_ ABSL_GUARDED_BY(mutex_);       // the status
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_KSERVE_STREAM_CALL_H_
