#include "server/services/compute_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/grpc_order.h"
#include "server/log.h"
#include "server/services/call_facts.h"
#include "server/services/grpc_status.h"

namespace attnd::server {
namespace {

// For refusals that a little patience cures; about the time of a mid-sized batch.
constexpr int64_t kBusyPushbackMs = 100;
// How often a decoder that waits for memory looks whether its caller is still there.
constexpr std::chrono::milliseconds kGoneCheckInterval(50);

absl::Status WithPushback(absl::Status status, int64_t pushback_ms) {
  SetRetryPushbackMs(status, pushback_ms);
  return status;
}

absl::Status DeadlinePassed() { return absl::DeadlineExceededError("the deadline passed"); }

}  // namespace

grpc::ServerGenericBidiReactor* ComputeCall::Start(const std::shared_ptr<ComputeCall>& call) {
  call->self_ = call;
  call->Admit();
  PassBaton(call.get());
  return call.get();
}

void ComputeCall::Admit() {
  inside_gate_ = parts_.gate->Enter();
  if (!inside_gate_) {
    return End(absl::UnavailableError("the server is draining"), Stage::kReceive);
  }
  const absl::StatusOr<int64_t> declared =
      DeclaredBytes(context_->client_metadata(), parts_.limits.max_message_bytes);
  if (!declared.ok()) return End(declared.status(), Stage::kReceive);
  declared_bytes_ = *declared;
  caller_ = CallerOf(context_->peer(), context_->client_metadata(), parts_.tenants);
  // Before the message is received, which beyond saturation would take the time that answers need.
  absl::StatusOr<QueuePlace> place = parts_.dispatcher->HoldPlace(caller_.tenant, declared_bytes_);
  if (!place.ok()) return End(place.status(), Stage::kReceive);
  place_ = *std::move(place);

  const TimePoint now = parts_.clock->Now();
  WatchDeadline(ToSteady(context_->deadline(), now), now);
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
  PassBaton(this);
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
  PassBaton(this);
  {
    MutexLock lock(mutex_);
    if (phase_ == Phase::kExpired) return;
    phase_ = Phase::kIdle;
  }
  if (context_->IsCancelled()) return End(WhyGone(), Stage::kReceive);
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
    End(WithPushback(absl::ResourceExhaustedError("too many requests wait to be decoded"),
                     kBusyPushbackMs),
        Stage::kReceive);
  }
}

void ComputeCall::PostSend(std::function<void()> send) {
  // Never refused: the pool has room for as many as the queue lets in.
  if (!parts_.senders->TryPost(send)) send();
}

// Three blocks' rounding included.
int64_t ComputeCall::UpperBlockBytes(int64_t payload_bytes) const {
  const BufferPool& pool = *parts_.payload_pool;
  return std::min(pool.budget_bytes(),
                  3 * pool.BlockBytes(1) + pool.BlockBytes(payload_bytes) * 9 / 8);
}

absl::Status ComputeCall::WhenRoom(const std::function<int64_t()>& needed_bytes, TimePoint deadline,
                                   const std::function<absl::Status()>& attempt) const {
  BufferPool& pool = *parts_.payload_pool;
  for (bool may_fit = true;;) {
    const uint64_t seen = pool.releases();
    const TimePoint now = parts_.clock->Now();
    if (now >= deadline) return DeadlinePassed();
    if (cancelled_) return WhyGone();
    if (may_fit) {
      absl::Status status = attempt();
      if (!absl::IsResourceExhausted(status) || RetryPushbackMs(status)) return status;
    }
    pool.WaitForRelease(seen, *parts_.clock, std::min(deadline, now + kGoneCheckInterval));
    may_fit = pool.used_bytes() + needed_bytes() <= pool.budget_bytes();
  }
}

absl::Status ComputeCall::CompleteRequest(Request& request) const {
  request.caller = caller_;
  request.deadline = std::min(request.deadline, deadline_);
  if (parts_.clock->Now() >= request.deadline) {
    return absl::DeadlineExceededError("the deadline passed before the request could be queued");
  }
  for (const ProblemSlot& slot : request.problems) {
    if (absl::Status status = parts_.dispatcher->Supports(slot.problem); !status.ok())
      return status;
  }
  const int64_t answer_block_bytes =
      parts_.answer_pool->BlockBytes(request.output.sent_o_bytes()) +
      parts_.answer_pool->BlockBytes(request.output.sent_lse_bytes());
  if (answer_block_bytes > parts_.answer_pool->budget_bytes()) {
    return WithPushback(
        absl::ResourceExhaustedError(absl::StrCat(
            "the answer needs ", answer_block_bytes, " bytes of memory, this server has ",
            parts_.answer_pool->budget_bytes(), " for answers (half of arena_bytes)")),
        -1);
  }
  return absl::OkStatus();
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
  const absl::Status status = parts_.dispatcher->Submit(job);
  if (!status.ok()) job->Finish(status, Stage::kQueue);
  // OnCancel may have come before the scheduler had the job.
  if (cancelled_) parts_.dispatcher->Cancel(job);
}

void ComputeCall::JobDone(const Job& job, absl::StatusOr<Answer> answer, Stage stage) {
  const Request& request = job.request();
  if (!answer.ok()) {
    const bool gone = cancelled_ && absl::IsCancelled(answer.status());
    return End(gone ? WhyGone() : answer.status(), stage);
  }
  answer->timing.total_us = ToMicroseconds(parts_.clock->Now() - request.arrival);
  parts_.metrics->ObserveTiming(answer->timing, request.priority);
  parts_.metrics->CountSent(transport(), request.output.sent_bytes());
  if (request.leases != nullptr) {
    parts_.metrics->CountRegionBytes(request.leased_input_bytes,
                                     request.answer_bytes() - request.output.sent_bytes());
  }
  if (LogEnabled(LogLevel::kDebug)) {
    LogEvent(LogLevel::kDebug, "computed",
             {{"request_id", request.request_id},
              {"traceparent", TraceparentOf(context_->client_metadata())},
              {"batch", answer->batch_id},
              {"kernel", answer->kernel},
              {"total_us", answer->timing.total_us}});
  }
  SendAnswer(request, *std::move(answer));
}

grpc::Status ComputeCall::CountedOk() {
  parts_.metrics->CountFinished(absl::StatusCode::kOk, Stage::kDone);
  return ToGrpcStatus(absl::OkStatus(), *context_);
}

void ComputeCall::OnCancel() {
  PassBaton(this);
  cancelled_ = true;
  if (parts_.receive_budget->Cancel(ticket_.load(std::memory_order_acquire))) {
    return End(WhyGone(), Stage::kReceive);
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
  parts_.metrics->CountFinished(status.code(), stage);
  // The scheduler counts its own.
  if (stage == Stage::kReceive) {
    if (const auto why = RefusalOf(status)) parts_.metrics->CountRefusal(*why);
    if (RetryPushbackMs(status).value_or(-1) >= 0) parts_.metrics->CountPushback();
  }
  if (absl::IsInternal(status)) {
    LogEvent(LogLevel::kError, "call_failed",
             {{"stage", StageName(stage)},
              {"traceparent", TraceparentOf(context_->client_metadata())},
              {"message", status.message()}});
  } else if (LogEnabled(LogLevel::kDebug)) {
    LogEvent(LogLevel::kDebug, "call_refused",
             {{"stage", StageName(stage)},
              {"code", absl::StatusCodeToString(status.code())},
              {"traceparent", TraceparentOf(context_->client_metadata())},
              {"message", status.message()}});
  }
  permit_ = ReceivePermit();
  place_ = QueuePlace();
  // What has not been handed to a device holds no region any more (Job).
  if (stage <= Stage::kQueue) context_->AddTrailingMetadata(kUntouchedTrailer, "1");
  PassBaton(this);
  Finish(ToGrpcStatus(status, *context_));
}

void ComputeCall::CountReceived(int64_t payload_bytes) {
  if (!counted_received_.exchange(true)) parts_.metrics->CountReceived(transport(), payload_bytes);
}

absl::Status ComputeCall::WhyGone() const {
  if (parts_.clock->Now() >= deadline_) return DeadlinePassed();
  return absl::CancelledError("the caller cancelled");
}

void ComputeCall::OnDone() {
  PassBaton(this);
  Drop();
  message_.Clear();
  outgoing_.Clear();
  parts_.deadlines->TakeBack(watched_);
  CallGate* const gate = inside_gate_ ? parts_.gate : nullptr;
  const std::shared_ptr<ComputeCall> self = std::move(self_);
  if (gate != nullptr) gate->Leave();
}

}  // namespace attnd::server
