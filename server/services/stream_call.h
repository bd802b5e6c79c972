// One call of ComputeStream.
#ifndef ATTND_SERVER_SERVICES_STREAM_CALL_H_
#define ATTND_SERVER_SERVICES_STREAM_CALL_H_

#include <memory>
#include <string>

#include "absl/types/optional.h"
#include "server/services/compute_call.h"
#include "server/wire/stream.h"

namespace attnd::server {

// The header, then the chunks, then the caller's end; back the same.
//
//   permit for one message -> header -> memory for the whole payload -> chunks, one at a time:
//   read, copied to where they stay by a copier, the next one read -> the caller's end -> Submit
//
// The caller is held back by HTTP/2: a message is read only when the one before has its place, an
// answer's chunk written only when the one before has left.
//
// Nothing waits in a ring: the permit is held from before the first message to after the last, so a
// stream that has its memory waits for its caller alone, never for another call; and copiers never
// wait for memory.
//
// timeout_us of the header is looked at with each message; a caller that falls silent is ended at
// gRPC's deadline or the server's own.
class StreamCall final : public ComputeCall {
 public:
  StreamCall(const ComputeParts& parts, grpc::GenericCallbackServerContext* context)
      : ComputeCall(parts, context) {}

  void OnWriteDone(bool ok) override;

 private:
  // What is left of an answer's tensor; its memory goes back with the last slice of it.
  struct Leaving {
    v1::Operand operand;
    std::shared_ptr<Buffer> buffer;
    int64_t sent_bytes = 0;
  };

  void OnMessage() override;
  void OnCallerClosed() override;
  void SendAnswer(const Request& request, Answer answer) override;
  const char* transport() const override { return "stream"; }
  void Drop() override;

  void TakeHeader();
  absl::Status ReadHeader();
  void TakeChunk();
  absl::Status ReadChunk();
  void TakeEnd();
  void WriteNext();
  bool NextMessage(grpc::ByteBuffer& message);

  absl::optional<wire::Upload> upload_;  // from the header to the end
  std::string header_;                   // of the answer, until it is sent
  Leaving leaving_[2] = {{v1::OPERAND_O, nullptr}, {v1::OPERAND_LSE, nullptr}};
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_STREAM_CALL_H_
