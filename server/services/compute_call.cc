#include "server/services/compute_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/services/call_facts.h"
#include "server/services/grpc_status.h"
#include "server/services/request_steps.h"

namespace attnd::server {
namespace {

absl::Status DeadlinePassed() { return absl::DeadlineExceededError("the deadline passed"); }

}  // namespace

void ComputeCall::Start(const std::shared_ptr<ComputeCall>& call) {
  call->self_ = call;
  call->Admit();
  call->Begun();
}

void ComputeCall::Admit() {
  begun_ = parts_.clock->Now();
  inside_gate_ = parts_.gate->Enter();
  if (!inside_gate_) {
    return End(absl::UnavailableError("the server is draining"), Stage::kReceive);
  }
  const absl::StatusOr<int64_t> declared =
      DeclaredBytes(context().client_metadata(), parts_.limits.max_message_bytes);
  if (!declared.ok()) return End(declared.status(), Stage::kReceive);
  declared_bytes_ = *declared;
  caller_ = CallerOf(context().peer(), context().client_metadata(), parts_.tenants);
  // Before the message is received, which beyond saturation would take the time that answers need.
  absl::StatusOr<QueuePlace> place = parts_.dispatcher->HoldPlace(caller_.tenant, declared_bytes_);
  if (!place.ok()) return End(place.status(), Stage::kReceive);
  place_ = *std::move(place);

  WatchDeadline(ToSteady(context().deadline(), begun_), begun_);
  uint64_t ticket = 0;
  absl::Status status = parts_.receive_budget->Acquire(
      std::min(declared_bytes_ * messages_at_once(), parts_.receive_budget->budget_bytes()),
      [self = shared_from_this()](ReceivePermit permit) { self->Granted(std::move(permit)); },
      &ticket);
  if (!status.ok()) {
    if (absl::IsResourceExhausted(status) && !RetryPushbackMs(status)) {
      SetRetryPushbackMs(status, kBusyPushbackMs);
    }
    return End(status, Stage::kReceive);
  }
  ticket_.store(ticket, std::memory_order_release);
  {
    MutexLock lock(mutex_);
    if (stop_.ok()) return;
  }
  // The deadline passed before there was a ticket.
  ReceiveDeadlinePassed();
}

void ComputeCall::WatchDeadline(TimePoint grpc_deadline, TimePoint now) {
  deadline_ = grpc_deadline;
  if (parts_.default_deadline_ms <= 0) return;
  const TimePoint own = now + std::chrono::milliseconds(parts_.default_deadline_ms);
  // gRPC watches over its own deadline.
  if (grpc_deadline <= own) return;
  deadline_ = own;
  watched_ =
      parts_.deadlines->Add(own, [self = shared_from_this()] { self->ReceiveDeadlinePassed(); });
}

void ComputeCall::Granted(ReceivePermit permit) {
  permit_ = std::move(permit);
  // A permit that another thread gives was waited for, and another lane's thread expects the
  // message in its place: its answers wait for it a little, no more.
  if (declared_bytes_ <= kSmallAnswerBytes) lane_ = IoLane::OfThisThread();
  if (lane_ != nullptr) lane_->ExpectMessage();
  ReadOn();
}

// kReading is said only once the read has been asked for, for from then on StopReading may end the
// call; it may be over by then.
void ComputeCall::ReadOn() {
  int64_t read = 0;
  {
    MutexLock lock(mutex_);
    read = ++reads_;
    phase_ = Phase::kAsking;
  }
  StartRead(&message_);
  absl::Status why;
  {
    MutexLock lock(mutex_);
    if (phase_ != Phase::kAsking || reads_ != read) return;
    if (stop_.ok()) {
      phase_ = Phase::kReading;
      return;
    }
    phase_ = Phase::kExpired;
    why = stop_;
  }
  End(why, Stage::kReceive);
}

void ComputeCall::StopReading(const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    stop_.Update(why);  // for ReadOn, if it is about to read
    if (phase_ != Phase::kReading) return;
    phase_ = Phase::kExpired;
  }
  End(why, Stage::kReceive);
}

// The server's own: from now on nothing more is received.
void ComputeCall::ReceiveDeadlinePassed() {
  if (parts_.receive_budget->Cancel(ticket_.load(std::memory_order_acquire))) {
    return End(DeadlinePassed(), Stage::kReceive);
  }
  StopReading(DeadlinePassed());
}

void ComputeCall::OnReadDone(bool ok) {
  if (IoLane* const lane = std::exchange(lane_, nullptr); lane != nullptr) lane->ExpectNoMore();
  {
    MutexLock lock(mutex_);
    if (phase_ == Phase::kExpired) return;
    phase_ = Phase::kIdle;
  }
  if (IsCancelled()) return End(Gone(), Stage::kReceive);
  ok ? OnMessage() : OnCallerClosed();
}

void ComputeCall::ReceivedAll() { parts_.deadlines->TakeBack(watched_); }

absl::Status ComputeCall::CheckDeclared() const {
  const auto bytes = static_cast<int64_t>(message_.Length());
  if (bytes <= declared_bytes_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the request is ", bytes, " bytes, but ",
                                                 kRequestBytesKey, " declared ", declared_bytes_));
}

void ComputeCall::Post(WorkerPool& workers, std::function<void()> task) {
  if (!workers.TryPost(std::move(task))) {
    End(Busy("too many requests wait to be decoded"), Stage::kReceive);
  }
}

void ComputeCall::PostSend(std::function<void()> send) {
  // Never refused: the pool has room for as many as the queue lets in.
  if (!parts_.senders->TryPost(send)) send();
}

absl::Status ComputeCall::WhenRoom(const std::function<int64_t()>& needed_bytes, TimePoint deadline,
                                   const std::function<absl::Status()>& attempt) const {
  return server::WhenRoom(
      parts_, needed_bytes, deadline, [this] { return cancelled_ ? Gone() : absl::OkStatus(); },
      attempt);
}

absl::Status ComputeCall::CompleteRequest(Request& request) const {
  return server::CompleteRequest(parts_, caller_, deadline_, request);
}

void ComputeCall::Submit(std::unique_ptr<Request> request) {
  const auto job = std::make_shared<Job>(
      std::move(request),
      [self = shared_from_this()](Job& done, absl::StatusOr<Answer> answer, Stage stage) {
        self->JobDone(done, std::move(answer), stage);
      });
  {
    MutexLock lock(mutex_);
    job_ = job;
  }
  const QueuePlace place = std::move(place_);  // for this long: from now on the job owns the call
  const absl::Status status = parts_.dispatcher->Submit(job, MostComputedHere());
  if (!status.ok()) job->Finish(status, Stage::kQueue);
  // OnCancel may have come before the scheduler had the job.
  if (cancelled_) parts_.dispatcher->Cancel(job);
}

void ComputeCall::JobDone(const Job& job, absl::StatusOr<Answer> answer, Stage stage) {
  const Request& request = job.request();
  if (!answer.ok()) {
    const bool gone = cancelled_ && absl::IsCancelled(answer.status());
    return End(gone ? Gone() : answer.status(), stage);
  }
  CountAnswer(parts_, transport(), request, context().client_metadata(), *answer);
  timing_ = answer->timing;
  batch_size_ = answer->batch_size;
  SendAnswer(request, *std::move(answer));
}

grpc::Status ComputeCall::CountedOk() {
  parts_.metrics->CountFinished(absl::StatusCode::kOk, Stage::kDone);
  parts_.metrics->inferences().CountAnswered(timing_, batch_size_);
  return ToGrpcStatus(absl::OkStatus(), context());
}

void ComputeCall::OnCancel() {
  cancelled_ = true;
  if (parts_.receive_budget->Cancel(ticket_.load(std::memory_order_acquire))) {
    return End(Gone(), Stage::kReceive);
  }
  std::shared_ptr<Job> job;
  {
    MutexLock lock(mutex_);
    job = job_.lock();
  }
  if (job != nullptr) parts_.dispatcher->Cancel(job);
}

void ComputeCall::End(const absl::Status& status, Stage stage) {
  Drop();
  CountReceived(0);
  CountFailure(parts_, status, stage, parts_.clock->Now() - begun_, context().client_metadata());
  permit_ = ReceivePermit();
  place_ = QueuePlace();
  // What has not been handed to a device holds no region any more (Job).
  if (stage <= Stage::kQueue) context().AddTrailingMetadata(kUntouchedTrailer, "1");
  Finish(ToGrpcStatus(status, context()));
}

void ComputeCall::CountReceived(int64_t payload_bytes) {
  if (!counted_received_.exchange(true)) parts_.metrics->CountReceived(transport(), payload_bytes);
}

absl::Status ComputeCall::Gone() const { return WhyGone(*parts_.clock, deadline_); }

void ComputeCall::OnDone() {
  Drop();
  message_.Clear();
  outgoing_.Clear();
  parts_.deadlines->TakeBack(watched_);
  CallGate* const gate = inside_gate_ ? parts_.gate : nullptr;
  const std::shared_ptr<ComputeCall> self = std::move(self_);
  if (gate != nullptr) gate->Leave();
}

}  // namespace attnd::server
