#include "server/services/stream_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/services/call_facts.h"
#include "server/services/message_bytes.h"
#include "server/services/request_steps.h"

namespace attnd::server {
namespace {

// What moves fastest (256 KB and 4 MB are slower): large against the cost of a message, small
// against the caches.
constexpr int64_t kChunkBytes = int64_t{1} << 20;

}  // namespace

void StreamCall::OnMessage() {
  absl::Status status = CheckDeclared();
  if (!status.ok()) return End(status, Stage::kReceive);
  if (!has_header_) {
    has_header_ = true;
    return TakeHeader();
  }
  if (LeaveToCopying(Ahead::kMessage, status)) return;
  if (!status.ok()) return End(status, Stage::kReceive);
  const auto self = shared_from_this();  // the call may end from here on
  chunk_.Swap(&message_);
  const bool copied_here = IsCopiedHere(static_cast<int64_t>(chunk_.Length()));
  ReadOn();
  // Copiers never refuse.
  if (copied_here || !parts_.copiers->TryPost([this, self] { CopyChunks(); })) CopyChunks();
}

bool StreamCall::LeaveToCopying(Ahead what, absl::Status& failed) {
  MutexLock lock(copying_mutex_);
  failed = failed_;
  if (copying_) ahead_ = what;
  return std::exchange(copying_, true);
}

void StreamCall::CopyChunks() {
  for (;;) {
    const absl::Status status = CopyChunk();
    chunk_.Clear();
    const Ahead ahead = WhatCame(status);
    if (!status.ok()) {
      return ahead == Ahead::kNothing ? StopReading(status) : End(status, Stage::kReceive);
    }
    if (ahead == Ahead::kNothing) return;
    if (ahead == Ahead::kEnd) return TakeEnd();
    chunk_.Swap(&message_);
    ReadOn();
  }
}

StreamCall::Ahead StreamCall::WhatCame(const absl::Status& copied) {
  MutexLock lock(copying_mutex_);
  failed_.Update(copied);
  const Ahead ahead = std::exchange(ahead_, Ahead::kNothing);
  copying_ = ahead == Ahead::kMessage && copied.ok();
  return ahead;
}

void StreamCall::TakeHeader() {
  const absl::Status status = ReadHeader();
  message_.Clear();
  if (!status.ok()) return End(status, Stage::kReceive);
  if (IsCopiedHere(sizes_.total())) {
    // Without waiting, which this thread must not.
    const absl::Status begun = BeginUpload();
    if (!IsForWantOfRoom(begun)) return UploadBegun(begun);
  }
  Post(*parts_.decoders, [this, self = shared_from_this()] {
    UploadBegun(WhenRoom([&] { return UpperBlockBytes(*parts_.payload_pool, sizes_.total()); },
                         request_->deadline, [&] { return BeginUpload(); }));
  });
}

absl::Status StreamCall::ReadHeader() {
  const absl::StatusOr<ReceivedMessage> received = ReceivedMessage::From(message_);
  if (!received.ok()) return received.status();
  const auto part = wire::ScanStreamPart(received->spans(), parts_.limits);
  if (!part.ok()) return part.status();
  if (part->header == nullptr) {
    return absl::InvalidArgumentError("a stream begins with its header; this one with a chunk");
  }
  auto request = wire::CheckStream(*part->header, parts_.limits, parts_.clock->Now(), sizes_);
  if (!request.ok()) return request.status();
  request_ = *std::move(request);
  absl::Status status = CheckStreamSize(sizes_.total(), parts_.max_stream_bytes);
  if (status.ok()) status = CompleteRequest(*request_);
  return status;
}

absl::Status StreamCall::BeginUpload() {
  auto upload = wire::Upload::Begin(request_, sizes_, *parts_.payload_pool);
  if (!upload.ok()) return upload.status();
  MutexLock lock(upload_mutex_);
  upload_ = *std::move(upload);
  return absl::OkStatus();
}

void StreamCall::UploadBegun(const absl::Status& status) {
  if (!status.ok()) return End(status, Stage::kReceive);
  ReadOn();
}

absl::Status StreamCall::CopyChunk() {
  MutexLock lock(upload_mutex_);
  if (!upload_) return absl::OkStatus();  // the call has ended
  if (parts_.clock->Now() >= upload_->request().deadline) {
    return absl::DeadlineExceededError("the deadline passed");
  }
  const absl::StatusOr<ReceivedMessage> received = ReceivedMessage::From(chunk_);
  if (!received.ok()) return received.status();
  const auto part = wire::ScanStreamPart(received->spans(), parts_.limits);
  if (!part.ok()) return part.status();
  if (part->header != nullptr) {
    return absl::InvalidArgumentError("the stream carries more than one header");
  }
  return upload_->Add(received->spans(), *part);
}

void StreamCall::OnCallerClosed() {
  ReceivedAll();
  if (!has_header_) {
    return End(absl::InvalidArgumentError("the stream carries no header"), Stage::kReceive);
  }
  absl::Status status;
  if (LeaveToCopying(Ahead::kEnd, status)) return;
  if (!status.ok()) return End(status, Stage::kReceive);
  TakeEnd();
}

void StreamCall::TakeEnd() {
  permit_ = ReceivePermit();
  absl::StatusOr<std::unique_ptr<Request>> request = FinishUpload();
  if (!request.ok()) return End(request.status(), Stage::kReceive);
  CountReceived((*request)->payload_bytes());
  (*request)->arrival = parts_.clock->Now();
  if (const absl::Status status = CompleteRequest(**request); !status.ok()) {
    return End(status, Stage::kReceive);
  }
  Submit(*std::move(request));
}

absl::StatusOr<std::unique_ptr<Request>> StreamCall::FinishUpload() {
  MutexLock lock(upload_mutex_);
  absl::StatusOr<std::unique_ptr<Request>> request = upload_->Finish();
  if (request.ok()) upload_.reset();
  return request;
}

void StreamCall::SendAnswer(const Request& request, Answer answer) {
  header_ = wire::EncodeStreamHeader(request, answer);
  const int64_t answer_bytes = answer.o.size_bytes() + answer.lse.size_bytes();
  leaving_[0].buffer = std::make_shared<Buffer>(std::move(answer.o));
  leaving_[1].buffer = std::make_shared<Buffer>(std::move(answer.lse));
  if (IsSentHere(answer_bytes)) return WriteNext();
  PostSend([this, self = shared_from_this()] { WriteNext(); });
}

void StreamCall::WriteNext() {
  if (NextMessage(outgoing_)) {
    return StartWrite(std::move(outgoing_));
  }
  const grpc::Status ok = CountedOk();
  StartWriteAndFinish(std::move(outgoing_), ok);
}

// False if this is the last one.
bool StreamCall::NextMessage(grpc::ByteBuffer& message) {
  const auto is_more = [this] {
    return std::any_of(std::begin(leaving_), std::end(leaving_),
                       [](const Leaving& tensor) { return tensor.buffer != nullptr; });
  };
  for (Leaving& tensor : leaving_) {
    if (tensor.buffer != nullptr && tensor.buffer->size_bytes() == 0) tensor.buffer.reset();
  }
  if (!header_.empty()) {
    const grpc::Slice slice(std::exchange(header_, {}));
    message = grpc::ByteBuffer(&slice, 1);
    return is_more();
  }
  Leaving& tensor = leaving_[0].buffer != nullptr ? leaving_[0] : leaving_[1];
  const int64_t left_bytes = tensor.buffer->size_bytes() - tensor.sent_bytes;
  const int64_t size_bytes = std::min(left_bytes, kChunkBytes);
  const grpc::Slice slices[] = {
      grpc::Slice(wire::EncodeChunkHead(tensor.operand, tensor.sent_bytes, size_bytes)),
      ToSlice(tensor.buffer, tensor.sent_bytes, size_bytes)};
  message = grpc::ByteBuffer(slices, 2);
  tensor.sent_bytes += size_bytes;
  if (size_bytes == left_bytes) tensor.buffer.reset();
  return is_more();
}

void StreamCall::OnWriteDone(bool ok) {
  if (!ok) return End(Gone(), Stage::kDone);
  WriteNext();
}

void StreamCall::Drop() {
  {
    MutexLock lock(upload_mutex_);
    if (upload_) CountReceived(upload_->received_bytes());
    upload_.reset();
  }
  for (Leaving& tensor : leaving_) tensor.buffer.reset();
}

}  // namespace attnd::server
