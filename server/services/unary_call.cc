#include "server/services/unary_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/services/call_facts.h"
#include "server/services/io_lane.h"
#include "server/services/message_bytes.h"
#include "server/services/request_steps.h"

namespace attnd::server {

void UnaryCall::OnMessage() {
  if (has_message_) {
    return End(
        absl::InvalidArgumentError(absl::StrCat("the call carries more than one ", message_name())),
        Stage::kReceive);
  }
  has_message_ = true;
  if (static_cast<int64_t>(message_.Length()) <= kInlineBytes) return Received();
  request_.Swap(&message_);
  ReadOn();
}

void UnaryCall::OnCallerClosed() {
  if (!has_message_) {
    ReceivedAll();
    return End(absl::InvalidArgumentError(absl::StrCat("the call carries no ", message_name())),
               Stage::kReceive);
  }
  message_.Swap(&request_);
  Received();
}

void UnaryCall::Received() {
  ReceivedAll();
  arrival_ = parts_.clock->Now();
  const auto bytes = static_cast<int64_t>(message_.Length());
  absl::Status status = CheckRequestSize(bytes, parts_.limits.max_message_bytes);
  if (status.ok()) status = CheckDeclared();
  if (!status.ok()) return End(status, Stage::kReceive);
  permit_.ShrinkTo(bytes);
  if (IsCopiedHere(bytes)) {
    // Without waiting, which that thread must not.
    absl::StatusOr<std::unique_ptr<Request>> request = DecodeOnce(kInlineBytes);
    if (!IsForWantOfRoom(request.status())) return Decoded(std::move(request));
  }
  Post(*parts_.decoders, [this, self = shared_from_this()] { Decode(); });
}

absl::StatusOr<std::unique_ptr<Request>> UnaryCall::DecodeOnce(int64_t max_shared_bytes) {
  const absl::StatusOr<ReceivedMessage> received = ReceivedMessage::From(message_);
  if (!received.ok()) return received.status();
  return DecodeMessage(received->spans(), arrival_, max_shared_bytes);
}

void UnaryCall::Decode() {
  absl::StatusOr<std::unique_ptr<Request>> request;
  const auto needed_bytes = [&] {
    return UpperBlockBytes(*parts_.payload_pool,
                           static_cast<int64_t>(message_.Length()) + shared_input_bytes());
  };
  const absl::Status status = WhenRoom(needed_bytes, deadline_, [&] {
    request = DecodeOnce(wire::Inference::kAllBytes);
    return request.status();
  });
  if (!status.ok()) request = status;
  Decoded(std::move(request));
}

void UnaryCall::Decoded(absl::StatusOr<std::unique_ptr<Request>> request) {
  // The bytes as received go before the call goes on, and with them the permit.
  message_.Clear();
  permit_ = ReceivePermit();
  if (!request.ok()) return End(request.status(), Stage::kReceive);
  CountReceived((*request)->received_bytes());
  if (const absl::Status status = CompleteRequest(**request); !status.ok()) {
    request->reset();  // its regions are the caller's again before it hears of it
    return End(status, Stage::kReceive);
  }
  Submit(*std::move(request));
}

void UnaryCall::SendAnswer(const Request& request, Answer answer) {
  wire::EncodedAnswer encoded = EncodeAnswer(request, answer);
  outgoing_ = ToByteBuffer(std::move(encoded), std::move(answer));
  const auto bytes = static_cast<int64_t>(outgoing_.Length()) + shared_output_bytes();
  const auto send = [this, self = shared_from_this()] { Send(); };
  if (!IsSentHere(bytes)) return PostSend(send);
  IoLane* const lane = IoLane::OfThisThread();
  if (lane == nullptr || bytes > kSmallAnswerBytes || !lane->PutOff(send)) Send();
}

void UnaryCall::Send() {
  if (const absl::Status status = PlaceOutputs(); !status.ok()) {
    return End(status, Stage::kDownload);
  }
  const grpc::Status ok = CountedOk();
  // With gRPC's last reference the answer's memory goes, and does not wait for the call's end,
  // which may come after the caller's next request.
  StartWriteAndFinish(std::move(outgoing_), ok);
}

absl::StatusOr<std::unique_ptr<Request>> V1UnaryCall::DecodeMessage(
    absl::Span<const wire::ByteSpan> message, TimePoint arrival, int64_t) {
  return wire::Decode(message, parts_.limits, arrival, *parts_.payload_pool, parts_.regions);
}

wire::EncodedAnswer V1UnaryCall::EncodeAnswer(const Request& request, Answer& answer) {
  return wire::Encode(request, answer);
}

absl::StatusOr<std::unique_ptr<Request>> KserveUnaryCall::DecodeMessage(
    absl::Span<const wire::ByteSpan> message, TimePoint arrival, int64_t max_shared_bytes) {
  return inference_.Decode(message, parts_.limits, arrival, *parts_.payload_pool, max_shared_bytes);
}

wire::EncodedAnswer KserveUnaryCall::EncodeAnswer(const Request& request, Answer& answer) {
  shared_outputs_ = inference_.TakeSharedOutputs(answer);
  return inference_.Encode(request, answer);
}

absl::Status KserveUnaryCall::PlaceOutputs() {
  const absl::Status status = inference_.PlaceOutputs(shared_outputs_);
  shared_outputs_ = {};
  return status;
}

}  // namespace attnd::server
