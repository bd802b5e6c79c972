#include "server/services/kserve_stream_call.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/services/grpc_status.h"
#include "server/services/message_bytes.h"
#include "server/services/request_steps.h"

namespace attnd::server {
namespace {

constexpr char kTransport[] = "stream";

absl::Status Draining() { return absl::UnavailableError("the server is draining"); }

}  // namespace

void KserveStreamCall::Start(const ComputeParts& parts, StreamShares& shares,
                             std::unique_ptr<RawStream> stream) {
  const std::shared_ptr<KserveStreamCall> call(
      new KserveStreamCall(parts, shares, std::move(stream)));
  call->self_ = call;
  call->Admit();
  call->Begun();
}

void KserveStreamCall::Admit() {
  begun_ = parts_.clock->Now();
  deadline_ = ToSteady(context().deadline(), begun_);
  caller_ = CallerOf(context().peer(), context().client_metadata(), parts_.tenants);
  absl::Status status = TakeShare();
  const auto self = shared_from_this();
  if (status.ok() && !parts_.gate->Watch(this, [self] { self->StopReading(Draining()); })) {
    status = Draining();
  }
  uint64_t ticket = 0;
  if (status.ok()) {
    status = parts_.receive_budget->Acquire(
        declared_bytes_, [self](ReceivePermit permit) { self->Granted(std::move(permit)); },
        &ticket);
  }
  if (!status.ok()) {
    parts_.metrics->CountCall(kTransport);
    parts_.metrics->CountReceived(kTransport, 0);
    CountFailure(parts_, status, Stage::kReceive, parts_.clock->Now() - begun_,
                 context().client_metadata());
    return StopReading(status);
  }
  ticket_.store(ticket, std::memory_order_release);
  bool is_closed = false;
  {
    MutexLock lock(mutex_);
    is_closed = closed_;
  }
  // It drains already: StopReading had no ticket.
  if (is_closed) parts_.receive_budget->Cancel(ticket);
}

absl::Status KserveStreamCall::TakeShare() {
  declared_bytes_ = std::min(shares_.undeclared_bytes, parts_.limits.max_message_bytes);
  if (context().client_metadata().count(kRequestBytesKey) > 0) {
    const absl::StatusOr<int64_t> declared =
        DeclaredBytes(context().client_metadata(), parts_.limits.max_message_bytes);
    if (!declared.ok()) return declared.status();
    declared_bytes_ = *declared;
  }
  uint64_t ticket = 0;
  absl::Status status = shares_.budget.Acquire(
      declared_bytes_, [this](ReceivePermit share) { share_ = std::move(share); }, &ticket);
  if (!absl::IsResourceExhausted(status)) return status;
  return Busy(absl::StrCat("streams hold ", shares_.budget.used_bytes(), " of ",
                           shares_.budget.budget_bytes(), " bytes for their messages; this one's ",
                           declared_bytes_, " (", kRequestBytesKey, ") find no room"));
}

void KserveStreamCall::Granted(ReceivePermit permit) {
  {
    MutexLock lock(mutex_);
    permit_ = std::move(permit);
    may_read_ = true;
  }
  Advance();
}

void KserveStreamCall::StopReading(const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    end_.Update(why);
    closed_ = true;
  }
  parts_.receive_budget->Cancel(ticket_.load(std::memory_order_acquire));
  Advance();
}

void KserveStreamCall::OnReadDone(bool ok) {
  if (ok) return TakeMessage();
  {
    MutexLock lock(mutex_);
    reading_ = false;
    closed_ = true;
  }
  Advance();
}

void KserveStreamCall::TakeMessage() {
  const auto turn = std::make_shared<Turn>(
      ShmOf(parts_.shm, context().peer(), context().client_metadata(), parts_.tenants));
  turn->arrival = parts_.clock->Now();
  turn->deadline = deadline_;
  if (parts_.default_deadline_ms > 0) {
    const auto own = turn->arrival + std::chrono::milliseconds(parts_.default_deadline_ms);
    turn->deadline = std::min(turn->deadline, own);
  }
  {
    MutexLock lock(mutex_);
    if (finished_) return;
    turns_.push_back(turn);
  }
  parts_.metrics->CountCall(kTransport);
  if (const absl::Status status = CheckMessage(); !status.ok()) return Decoded(turn, status);
  turn->inside_gate = parts_.gate->Enter();
  if (!turn->inside_gate) return Decoded(turn, Draining());
  if (IsCopiedHere(static_cast<int64_t>(message_.Length()))) {
    // Without waiting, which this thread must not.
    absl::StatusOr<std::unique_ptr<Request>> request = DecodeOnce(*turn, kInlineBytes);
    if (!IsForWantOfRoom(request.status())) return Decoded(turn, std::move(request));
  }
  const auto self = shared_from_this();
  if (!parts_.decoders->TryPost([self, turn] { self->Decode(turn); })) {
    Decoded(turn, Busy("too many requests wait to be decoded"));
  }
}

absl::Status KserveStreamCall::CheckMessage() const {
  const auto bytes = static_cast<int64_t>(message_.Length());
  if (absl::Status status = CheckRequestSize(bytes, parts_.limits.max_message_bytes);
      !status.ok()) {
    return status;
  }
  if (bytes <= declared_bytes_) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the request is ", bytes, " bytes; this stream has memory for ", declared_bytes_,
                   ": declare the size of its largest request in the metadata ", kRequestBytesKey));
}

absl::StatusOr<std::unique_ptr<Request>> KserveStreamCall::DecodeOnce(Turn& turn,
                                                                      int64_t max_shared_bytes) {
  const absl::StatusOr<ReceivedMessage> received = ReceivedMessage::From(message_);
  if (!received.ok()) return received.status();
  return turn.inference.Decode(received->spans(), parts_.limits, turn.arrival, *parts_.payload_pool,
                               max_shared_bytes);
}

void KserveStreamCall::Decode(const TurnPtr& turn) {
  absl::StatusOr<std::unique_ptr<Request>> request;
  const auto needed_bytes = [&] {
    return UpperBlockBytes(*parts_.payload_pool, static_cast<int64_t>(message_.Length()) +
                                                     turn->inference.shared_input_bytes());
  };
  const absl::Status status = WhenRoom(
      parts_, needed_bytes, turn->deadline,
      [this] { return cancelled_ ? Gone() : absl::OkStatus(); },
      [&] {
        request = DecodeOnce(*turn, wire::Inference::kAllBytes);
        return request.status();
      });
  if (!status.ok()) request = status;
  Decoded(turn, std::move(request));
}

void KserveStreamCall::Decoded(const TurnPtr& turn,
                               absl::StatusOr<std::unique_ptr<Request>> request) {
  const auto self = shared_from_this();
  message_.Clear();
  {
    MutexLock lock(mutex_);
    reading_ = false;
  }
  Advance();  // reads on, before this one is computed, perhaps on this very thread
  absl::Status status = request.status();
  if (status.ok()) {
    CountReceived(*turn, (*request)->received_bytes());
    status = CompleteRequest(parts_, caller_, turn->deadline, **request);
  }
  if (status.ok()) {
    Submit(turn, *std::move(request));
  } else {
    Fail(*turn, status, Stage::kReceive);
  }
}

void KserveStreamCall::Submit(const TurnPtr& turn, std::unique_ptr<Request> request) {
  const auto job = std::make_shared<Job>(
      std::move(request),
      [self = shared_from_this(), turn](Job& done, absl::StatusOr<Answer> answer, Stage stage) {
        self->JobDone(turn, done.request(), std::move(answer), stage);
      });
  {
    MutexLock lock(mutex_);
    turn->job = job;
  }
  const absl::Status status = parts_.dispatcher->Submit(job, MostComputedHere());
  if (!status.ok()) job->Finish(status, Stage::kQueue);
  // OnCancel may have come before the scheduler had the job.
  if (cancelled_) parts_.dispatcher->Cancel(job);
}

void KserveStreamCall::JobDone(const TurnPtr& turn, const Request& request,
                               absl::StatusOr<Answer> answer, Stage stage) {
  if (!answer.ok()) {
    const bool gone = cancelled_ && absl::IsCancelled(answer.status());
    return Fail(*turn, gone ? Gone() : answer.status(), stage);
  }
  CountAnswer(parts_, kTransport, request, context().client_metadata(), *answer);
  turn->timing = answer->timing;
  turn->batch_size = answer->batch_size;
  turn->shared_outputs = turn->inference.TakeSharedOutputs(*answer);
  wire::EncodedAnswer encoded = turn->inference.EncodeStreamed(request, *answer);
  turn->message = ToByteBuffer(std::move(encoded), *std::move(answer));
  if (IsSentHere(turn->shared_outputs.size_bytes())) return Place(*turn);
  // Copying much is not the executor's work.
  const auto place = [self = shared_from_this(), turn] { self->Place(*turn); };
  if (!parts_.senders->TryPost(place)) place();
}

void KserveStreamCall::Place(Turn& turn) {
  const absl::Status placed = turn.inference.PlaceOutputs(turn.shared_outputs);
  turn.shared_outputs = {};
  if (!placed.ok()) return Fail(turn, placed, Stage::kDownload);
  turn.is_answer = true;
  Ready(turn);
}

void KserveStreamCall::Fail(Turn& turn, const absl::Status& status, Stage stage) {
  CountReceived(turn, 0);
  CountFailure(parts_, status, stage, parts_.clock->Now() - turn.arrival,
               context().client_metadata());
  const grpc::Slice slice(turn.inference.EncodeFailure(status));
  turn.message = grpc::ByteBuffer(&slice, 1);
  Ready(turn);
}

void KserveStreamCall::CountReceived(Turn& turn, int64_t payload_bytes) {
  if (std::exchange(turn.counted_received, true)) return;
  parts_.metrics->CountReceived(kTransport, payload_bytes);
}

void KserveStreamCall::Ready(Turn& turn) {
  int64_t next_bytes = 0;
  {
    MutexLock lock(mutex_);
    turn.is_ready = true;
    const Turn& first = *turns_.front();
    if (first.is_ready && !writing_) next_bytes = static_cast<int64_t>(first.message.Length());
  }
  if (IsSentHere(next_bytes)) return Advance();
  // Writing much to a socket is not the executor's work.
  const auto advance = [self = shared_from_this()] { self->Advance(); };
  if (!parts_.senders->TryPost(advance)) advance();
}

void KserveStreamCall::Advance() {
  const auto self = shared_from_this();  // the call may end from here on
  for (;;) {
    TurnPtr turn;
    Step step = Step::kNone;
    {
      MutexLock lock(mutex_);
      if (asking_ || finished_) return;
      step = NextStep();
      asking_ = step != Step::kNone;
      if (step == Step::kWrite || step == Step::kDrop) turn = turns_.front();
    }
    switch (step) {
      case Step::kNone:
        return;
      case Step::kRead:
        StartRead(&message_);
        break;
      case Step::kWrite:
        Write(*turn);
        break;
      case Step::kDrop:
        Drop(*turn);
        break;
      case Step::kFinish:
        return Finish(ToGrpcStatus(WhyEnded(), context()));
    }
    MutexLock lock(mutex_);
    asking_ = false;
  }
}

KserveStreamCall::Step KserveStreamCall::NextStep() {
  if (!turns_.empty() && turns_.front()->is_ready && !writing_) {
    if (cancelled_ || broken_) return Step::kDrop;
    writing_ = true;
    return Step::kWrite;
  }
  if (may_read_ && !reading_ && !closed_ && turns_.size() < kMaxTurns) {
    reading_ = true;
    return Step::kRead;
  }
  if (closed_ && turns_.empty()) {
    finished_ = true;
    return Step::kFinish;
  }
  return Step::kNone;
}

void KserveStreamCall::Write(Turn& turn) {
  if (turn.is_answer) {
    parts_.metrics->CountFinished(absl::StatusCode::kOk, Stage::kDone);
    parts_.metrics->inferences().CountAnswered(turn.timing, turn.batch_size);
  }
  StartWrite(std::move(turn.message));
}

void KserveStreamCall::OnWriteDone(bool ok) {
  TurnPtr turn;
  {
    MutexLock lock(mutex_);
    writing_ = false;
    if (!ok) broken_ = true;
    turn = TakeFirst();
  }
  Over(*turn);
  Advance();
}

// The first turn, which nobody will read.
void KserveStreamCall::Drop(Turn& turn) {
  if (turn.is_answer) {
    CountFailure(parts_, Gone(), Stage::kDone, parts_.clock->Now() - turn.arrival,
                 context().client_metadata());
  }
  {
    MutexLock lock(mutex_);
    TakeFirst();  // Advance holds it
  }
  Over(turn);
}

KserveStreamCall::TurnPtr KserveStreamCall::TakeFirst() {
  TurnPtr turn = std::move(turns_.front());
  turns_.pop_front();
  return turn;
}

void KserveStreamCall::Over(Turn& turn) {
  if (turn.inside_gate) parts_.gate->Leave();
}

void KserveStreamCall::OnCancel() {
  cancelled_ = true;
  std::vector<std::shared_ptr<Job>> jobs;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    for (const TurnPtr& turn : turns_) {
      if (auto job = turn->job.lock()) jobs.push_back(std::move(job));
    }
  }
  parts_.receive_budget->Cancel(ticket_.load(std::memory_order_acquire));
  for (const auto& job : jobs) parts_.dispatcher->Cancel(job);
  Advance();
}

absl::Status KserveStreamCall::Gone() const { return WhyGone(*parts_.clock, deadline_); }

absl::Status KserveStreamCall::WhyEnded() const {
  MutexLock lock(mutex_);
  return cancelled_ || broken_ ? Gone() : end_;
}

void KserveStreamCall::OnDone() {
  parts_.gate->Forget(this);
  message_.Clear();
  share_ = ReceivePermit();
  ReceivePermit permit;
  {
    MutexLock lock(mutex_);
    permit = std::move(permit_);
  }
  const std::shared_ptr<KserveStreamCall> self = std::move(self_);
}

}  // namespace attnd::server
