// One call of ComputeStream.
#ifndef ATTND_SERVER_SERVICES_STREAM_CALL_H_
#define ATTND_SERVER_SERVICES_STREAM_CALL_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/types/optional.h"
#include "server/services/compute_call.h"
#include "server/wire/stream.h"

namespace attnd::server {

// The header, then the chunks, then the caller's end; back the same.
//
//   permit for two messages -> header -> memory for the whole payload -> chunks: one is copied to
//   where it stays while the next one is read -> the caller's end -> Submit
//
// The caller is held back by HTTP/2: a message is read only when the last but one has its place, an
// answer's chunk written only when the one before has left.
//
// While a chunk is copied, the owner is the read beside it. What comes meanwhile, a message or the
// caller's end, is left to the thread that copies, and the ownership with it. The call may end
// meanwhile too: the copying then finds nothing to copy to.
//
// Nothing waits in a ring: the permit is held from before the first message to after the last, so a
// stream that has its memory waits for its caller alone, never for another call; and copiers never
// wait for memory.
//
// timeout_us of the header is looked at with each message; a caller that falls silent is ended at
// gRPC's deadline or the server's own.
class StreamCall final : public ComputeCall {
 public:
  StreamCall(const ComputeParts& parts, std::unique_ptr<RawStream> stream)
      : ComputeCall(parts, std::move(stream)) {}

 private:
  // What is left of an answer's tensor; its memory goes back with the last slice of it.
  struct Leaving {
    v1::Operand operand;
    std::shared_ptr<Buffer> buffer;
    int64_t sent_bytes = 0;
  };

  void OnMessage() override;
  void OnCallerClosed() override;
  void OnWriteDone(bool ok) override;
  void SendAnswer(const Request& request, Answer answer) override;
  const char* transport() const override { return "stream"; }
  void Drop() override;
  int64_t messages_at_once() const override { return 2; }

  // What came while a chunk was copied.
  enum class Ahead { kNothing, kMessage, kEnd };

  // On the connection's thread; a decoder waits for memory where that is not there at once.
  void TakeHeader();
  // message_ to request_ and sizes_.
  absl::Status ReadHeader();
  // RESOURCE_EXHAUSTED without a pushback if there is no room now.
  absl::Status BeginUpload();
  void UploadBegun(const absl::Status& status);
  // Leaves what came to the thread that copies; false if there is none. `failed` is what copying
  // came to.
  bool LeaveToCopying(Ahead what, absl::Status& failed);
  // chunk_, and what comes meanwhile. By the thread that copies.
  void CopyChunks();
  absl::Status CopyChunk();
  // By the thread that copies, which it is no more unless this says kMessage.
  Ahead WhatCame(const absl::Status& copied);
  void TakeEnd();
  absl::StatusOr<std::unique_ptr<Request>> FinishUpload();
  void WriteNext();
  bool NextMessage(grpc::ByteBuffer& message);

  bool has_header_ = false;  // of the request
  // From the header to the beginning of the upload; the sizes are its payload's.
  std::unique_ptr<Request> request_;
  wire::PayloadBytes sizes_;
  grpc::ByteBuffer chunk_;  // being copied
  Mutex upload_mutex_;      // held while a chunk is copied
  absl::optional<wire::Upload> upload_ ABSL_GUARDED_BY(upload_mutex_);  // from header to end
  Mutex copying_mutex_;
  bool copying_ ABSL_GUARDED_BY(copying_mutex_) = false;
  Ahead ahead_ ABSL_GUARDED_BY(copying_mutex_) = Ahead::kNothing;
  absl::Status failed_ ABSL_GUARDED_BY(copying_mutex_);  // to copy a chunk
  std::string header_;                                   // of the answer, until it is sent
  Leaving leaving_[2] = {{v1::OPERAND_O, nullptr}, {v1::OPERAND_LSE, nullptr}};
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_STREAM_CALL_H_
