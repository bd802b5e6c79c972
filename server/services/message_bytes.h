// Between gRPC's buffers and the spans and buffers of the server, without a copy.
#ifndef ATTND_SERVER_SERVICES_MESSAGE_BYTES_H_
#define ATTND_SERVER_SERVICES_MESSAGE_BYTES_H_

#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "server/request.h"
#include "server/wire/wire.h"

namespace attnd::server {

// The pieces of a received message, for as long as this lives.
class ReceivedMessage {
 public:
  // INTERNAL if gRPC cannot give its bytes.
  static absl::StatusOr<ReceivedMessage> From(const grpc::ByteBuffer& buffer);
  absl::Span<const wire::ByteSpan> spans() const { return spans_; }

 private:
  std::vector<grpc::Slice> slices_;
  std::vector<wire::ByteSpan> spans_;
};

// A part of `buffer`, which stays where it is until gRPC has let go of every slice of it.
grpc::Slice ToSlice(const std::shared_ptr<Buffer>& buffer, int64_t offset_bytes,
                    int64_t size_bytes);

// The message of an answer. Its tensors stay where they are: each buffer is given back to its pool
// when gRPC has let go of its slice, which may be after the call is done.
grpc::ByteBuffer ToByteBuffer(wire::EncodedAnswer encoded, Answer answer);

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_MESSAGE_BYTES_H_
