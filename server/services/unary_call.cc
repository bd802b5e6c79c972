#include "server/services/unary_call.h"

#include <utility>

#include "server/grpc_order.h"
#include "server/services/call_facts.h"
#include "server/services/message_bytes.h"

namespace attnd::server {

void UnaryCall::OnMessage() {
  if (has_message_) {
    return End(absl::InvalidArgumentError("the call carries more than one ComputeRequest"),
               Stage::kReceive);
  }
  has_message_ = true;
  request_.Swap(&message_);
  ReadOn();
}

void UnaryCall::OnCallerClosed() {
  ReceivedAll();
  if (!has_message_) {
    return End(absl::InvalidArgumentError("the call carries no ComputeRequest"), Stage::kReceive);
  }
  arrival_ = parts_.clock->Now();
  message_.Swap(&request_);
  const auto bytes = static_cast<int64_t>(message_.Length());
  absl::Status status = CheckRequestSize(bytes, parts_.limits.max_message_bytes);
  if (status.ok()) status = CheckDeclared();
  if (!status.ok()) return End(status, Stage::kReceive);
  permit_.ShrinkTo(bytes);
  Post(*parts_.decoders, [this, self = shared_from_this()] { Decode(); });
}

void UnaryCall::Decode() {
  ReceivePermit permit = std::move(permit_);
  grpc::ByteBuffer message;
  message.Swap(&message_);
  absl::StatusOr<std::unique_ptr<Request>> request = DecodeWhenRoom(message);
  // The bytes as received go before the call goes on, and with them the permit.
  message.Clear();
  permit = ReceivePermit();
  if (!request.ok()) return End(request.status(), Stage::kReceive);
  CountReceived((*request)->payload_bytes());
  if (const absl::Status status = CompleteRequest(**request); !status.ok()) {
    return End(status, Stage::kReceive);
  }
  Submit(*std::move(request));
}

absl::StatusOr<std::unique_ptr<Request>> UnaryCall::DecodeWhenRoom(
    const grpc::ByteBuffer& message) {
  const absl::StatusOr<ReceivedMessage> received = ReceivedMessage::From(message);
  if (!received.ok()) return received.status();
  std::unique_ptr<Request> request;
  const absl::Status status =
      WhenRoom(UpperBlockBytes(static_cast<int64_t>(message.Length())), deadline_, [&] {
        auto decoded =
            wire::Decode(received->spans(), parts_.limits, arrival_, *parts_.payload_pool);
        if (decoded.ok()) request = *std::move(decoded);
        return decoded.status();
      });
  if (!status.ok()) return status;
  return request;
}

void UnaryCall::SendAnswer(const Request& request, Answer answer) {
  wire::EncodedAnswer encoded = wire::Encode(request, answer);
  grpc::ByteBuffer message = ToByteBuffer(std::move(encoded), std::move(answer));
  PostSend([this, self = shared_from_this(), message = std::move(message)]() mutable {
    outgoing_.Swap(&message);
    const grpc::Status ok = CountedOk();
    PassBaton(this);
    StartWriteAndFinish(&outgoing_, grpc::WriteOptions(), ok);
  });
}

}  // namespace attnd::server
