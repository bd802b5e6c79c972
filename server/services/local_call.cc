#include "server/services/local_call.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/regions/protocol/packet.h"
#include "server/scheduler/refusal.h"
#include "server/services/request_steps.h"
#include "server/wire/wire.h"

namespace attnd::server {
namespace {

using regions::CallAnswerFrame;
using regions::CallFrame;

constexpr char kTransport[] = "local";

const Metadata& NoMetadata() {
  static const Metadata* const none = new Metadata;
  return *none;
}

// The caller's or the server's own, whichever is first.
TimePoint DeadlineOf(TimePoint arrival, int64_t timeout_us, int64_t default_deadline_ms) {
  TimePoint deadline = kNever;
  if (timeout_us > 0 && timeout_us < ToMicroseconds(kNever - arrival)) {
    deadline = arrival + std::chrono::microseconds(timeout_us);
  }
  if (default_deadline_ms <= 0) return deadline;
  return std::min(deadline, arrival + std::chrono::milliseconds(default_deadline_ms));
}

// Whoever is at the other end is this process' own user (RegionSocket).
Caller LocalCaller() {
  Caller caller;
  caller.uid = geteuid();
  caller.is_local = true;
  return caller;
}

}  // namespace

void LocalCall::Begin(const CallFrame& frame, absl::Span<const unsigned char> message,
                      Duration most_here) {
  arrival_ = parts_.clock->Now();
  parts_.metrics->CountCall(kTransport);
  parts_.metrics->CountReceived(kTransport, 0);
  inside_gate_ = parts_.gate->Enter();
  if (!inside_gate_) {
    return Fail(absl::UnavailableError("the server is draining"), Stage::kReceive);
  }
  absl::StatusOr<std::unique_ptr<Request>> request = Read(frame, message);
  if (!request.ok()) return Fail(request.status(), Stage::kReceive);
  Submit(*std::move(request), most_here);
}

absl::StatusOr<std::unique_ptr<Request>> LocalCall::Read(const CallFrame& frame,
                                                         absl::Span<const unsigned char> message) {
  if (frame.timeout_us < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout_us is ", frame.timeout_us, ", must be >= 0"));
  }
  deadline_ = DeadlineOf(arrival_, frame.timeout_us, parts_.default_deadline_ms);
  const wire::ByteSpan span(message);
  absl::StatusOr<std::unique_ptr<Request>> request =
      wire::Decode({&span, 1}, parts_.limits, arrival_, *parts_.payload_pool, parts_.regions);
  if (!request.ok()) {
    return IsForWantOfRoom(request.status()) ? Busy(request.status().message()) : request.status();
  }
  const int64_t received_bytes = (*request)->received_bytes();
  const int64_t sent_bytes = (*request)->sent_bytes();
  if (received_bytes > 0 || sent_bytes > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a call over the side socket has all of its tensors in regions: ", received_bytes,
        " bytes lie in the message, ", sent_bytes, " would go with the answer"));
  }
  if (absl::Status status = CompleteRequest(parts_, LocalCaller(), deadline_, **request);
      !status.ok()) {
    return status;
  }
  return request;
}

void LocalCall::Submit(std::unique_ptr<Request> request, Duration most_here) {
  const auto job = std::make_shared<Job>(
      std::move(request),
      [self = shared_from_this()](Job& done, absl::StatusOr<Answer> answer, Stage stage) {
        self->JobDone(done.request(), std::move(answer), stage);
      });
  job_ = job;
  const absl::Status status = parts_.dispatcher->Submit(job, most_here);
  if (!status.ok()) job->Finish(status, Stage::kQueue);
}

void LocalCall::Cancel() {
  cancelled_ = true;
  if (const std::shared_ptr<Job> job = job_.lock()) parts_.dispatcher->Cancel(job);
}

void LocalCall::JobDone(const Request& request, absl::StatusOr<Answer> answer, Stage stage) {
  if (!answer.ok()) {
    const bool gone = cancelled_ && absl::IsCancelled(answer.status());
    return Fail(gone ? WhyGone(*parts_.clock, deadline_) : answer.status(), stage);
  }
  CountAnswer(parts_, kTransport, request, NoMetadata(), *answer);
  const wire::EncodedAnswer encoded = wire::Encode(request, *answer);
  parts_.metrics->CountFinished(absl::StatusCode::kOk, Stage::kDone);
  parts_.metrics->inferences().CountAnswered(answer->timing, answer->batch_size);
  Send({}, absl::StrCat(encoded.head, encoded.middle));
}

void LocalCall::Fail(const absl::Status& status, Stage stage) {
  CountFailure(parts_, status, stage, parts_.clock->Now() - arrival_, NoMetadata());
  CallAnswerFrame frame;
  frame.code = static_cast<int32_t>(status.code());
  frame.is_untouched = stage <= Stage::kQueue ? 1 : 0;
  if (const absl::optional<int64_t> pushback_ms = RetryPushbackMs(status)) {
    frame.has_pushback = 1;
    frame.pushback_ms = *pushback_ms;
  }
  Send(frame, status.message());
}

void LocalCall::Send(CallAnswerFrame frame, absl::string_view bytes) {
  std::array<char, regions::kMaxCallAnswerPacketBytes> packet;
  const size_t size_bytes = std::min(bytes.size(), packet.size() - sizeof(frame));
  std::memcpy(packet.data(), &frame, sizeof(frame));
  std::memcpy(packet.data() + sizeof(frame), bytes.data(), size_bytes);
  // First, for the next call may come as soon as the caller has the answer.
  connection_->is_busy = false;
  regions::SendPacket(connection_->socket.get(), packet.data(),
                      static_cast<int64_t>(sizeof(frame) + size_bytes))
      .IgnoreError();  // the caller is gone
  if (inside_gate_) parts_.gate->Leave();
}

}  // namespace attnd::server
