#include "server/services/message_bytes.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/grpc_order.h"

namespace attnd::server {
grpc::Slice ToSlice(const std::shared_ptr<Buffer>& buffer, int64_t offset_bytes,
                    int64_t size_bytes) {
  auto owner = std::make_unique<std::shared_ptr<Buffer>>(buffer);
  PassBaton(owner.get());
  const auto let_go = [](void* held) {
    PassBaton(held);
    delete static_cast<std::shared_ptr<Buffer>*>(held);
  };
  return grpc::Slice(buffer->data() + offset_bytes, static_cast<size_t>(size_bytes), let_go,
                     owner.release());
}

namespace {

grpc::Slice ToSlice(Buffer buffer) {
  const auto whole = std::make_shared<Buffer>(std::move(buffer));
  return ToSlice(whole, 0, whole->size_bytes());
}

}  // namespace

absl::StatusOr<ReceivedMessage> ReceivedMessage::From(const grpc::ByteBuffer& buffer) {
  ReceivedMessage message;
  // A call whose message is empty has a buffer without slices.
  if (buffer.Length() == 0) return message;
  if (const grpc::Status status = buffer.Dump(&message.slices_); !status.ok()) {
    return absl::InternalError(
        absl::StrCat("the received message cannot be read: ", status.error_message()));
  }
  message.spans_.reserve(message.slices_.size());
  for (const grpc::Slice& slice : message.slices_) {
    message.spans_.emplace_back(slice.begin(), slice.size());
  }
  return message;
}

grpc::ByteBuffer ToByteBuffer(wire::EncodedAnswer encoded, Answer answer) {
  std::vector<grpc::Slice> slices;
  slices.emplace_back(encoded.head);
  if (answer.o.size_bytes() > 0) slices.push_back(ToSlice(std::move(answer.o)));
  if (!encoded.middle.empty()) slices.emplace_back(encoded.middle);
  if (!encoded.middle.empty() && answer.lse.size_bytes() > 0) {
    slices.push_back(ToSlice(std::move(answer.lse)));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace attnd::server
