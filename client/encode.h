// Requests to gRPC messages and back, without protobuf ever holding a tensor.
#ifndef ATTND_CLIENT_ENCODE_H_
#define ATTND_CLIENT_ENCODE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "grpcpp/support/byte_buffer.h"

namespace attnd::v1 {
class ComputeResponseHeader;
}

namespace attnd::client {

// Protobuf's own limit, which every reader of the message shares.
inline constexpr int64_t kMaxMessageBytes = (int64_t{1} << 31) - 1;

// Whether a tensor or an output of it lies in a region.
bool NamesRegions(const AttentionRequest& request);

// A ComputeRequest in pieces, in order. Views lie in memory that is not owned; frames are the bytes
// in front of each: the header with Q's tag and length, then K's, then V's.
struct EncodedRequest {
  std::string frames[3];
  const void* payloads[3] = {};
  int64_t payload_bytes[3] = {};
  // The first message of a stream. Empty if the call is not to become one; then frames are empty if
  // it can be nothing else.
  std::string stream_header;
  bool is_stream = false;

  // Of the message, or of a stream's payload.
  int64_t size_bytes() const;
};

// What Encode says of the tensors alone.
absl::Status CheckTensors(const AttentionRequest& request);

// INVALID_ARGUMENT naming the field: data null or not in its region, an extent negative, a message
// over kMaxMessageBytes that is not to be a stream, a region where the transport has none. The
// server checks everything else.
absl::StatusOr<EncodedRequest> Encode(const AttentionRequest& request);

// The message over the payloads' own memory, uncopied but for small ones. gRPC may read them until
// every copy of `keep` that the message holds is gone, which can be later than the call's end.
grpc::ByteBuffer ToMessage(const EncodedRequest& request, const std::shared_ptr<void>& keep);

// A message of a stream is at most this large: a chunk of 1 MiB and what stands before it, or the
// largest header that servers take.
inline constexpr int64_t kChunkBytes = int64_t{1} << 20;
inline constexpr int64_t kMaxStreamMessageBytes = kChunkBytes + 64;

// What a stream sends, one message after another: its header, then its payload in chunks. Not
// thread-safe.
class StreamMessages {
 public:
  // `request` outlives it; `keep` as in ToMessage, over whose memory chunks lie like messages.
  StreamMessages(const EncodedRequest& request, std::shared_ptr<void> keep)
      : request_(&request), keep_(std::move(keep)) {}

  // After the last message; never at the beginning.
  bool at_end() const { return operand_ == 3; }
  // Not at the end.
  grpc::ByteBuffer Next();
  // Gives up `keep`; there is no message after that.
  void LetGo();

 private:
  grpc::ByteBuffer NextChunk();

  const EncodedRequest* request_;
  std::shared_ptr<void> keep_;
  bool has_header_ = false;
  int operand_ = 0;  // of the next chunk: q, k, v
  int64_t offset_bytes_ = 0;
};

// What a request expects of its answer.
struct ExpectedAnswer {
  DType dtype;
  std::vector<int64_t> shape;
  bool want_lse;
  bool o_has_place;  // in a region, and so does not come with the answer
  bool lse_has_place;
  void* o_data;  // where O goes; null: into the result
  int64_t o_bytes;

  explicit ExpectedAnswer(const AttentionRequest& request)
      : dtype(request.q.dtype),
        shape(request.q.shape),
        want_lse(request.want_lse),
        o_has_place(request.o_place && request.o_place->region != nullptr),
        lse_has_place(request.lse_place.has_value()),
        o_data(request.o_place && !o_has_place ? request.o_place->data : nullptr),
        o_bytes(request.q.size_bytes()) {}
};

// Reads a ComputeResponse, each payload copied once. INTERNAL if it is not one, or is not the
// answer to what was asked. sent_bytes and tries are the caller's to fill.
absl::StatusOr<AttentionResult> DecodeAnswer(const ExpectedAnswer& expected,
                                             grpc::ByteBuffer message);

// Which bytes of a tensor have come. Those that go on where the last ones ended, as a server's do,
// take no memory of their own.
class CameBytes {
 public:
  void Add(int64_t begin, int64_t size_bytes);
  // Without those that came twice.
  int64_t Count() const;

 private:
  std::vector<std::pair<int64_t, int64_t>> pieces_;  // from byte to byte
};

// The same from the messages of a stream. Not thread-safe.
class StreamedAnswer {
 public:
  StreamedAnswer();
  ~StreamedAnswer();

  // INTERNAL if the message is no ComputeStreamResponse, or does not go with those before it.
  absl::Status Add(const ExpectedAnswer& expected, grpc::ByteBuffer message);
  // After the last message.
  absl::StatusOr<AttentionResult> Finish();

  struct ScannedPart;  // of decode.cc

 private:
  absl::Status AddChunk(const ExpectedAnswer& expected, const ScannedPart& chunk,
                        grpc::ByteBuffer& message);
  absl::Status AddHeader(const ExpectedAnswer& expected, const v1::ComputeResponseHeader& header);

  AttentionResult result_;
  bool has_header_ = false;
  int64_t missing_bytes_ = 0;
  CameBytes came_o_;
  CameBytes came_lse_;
};

}  // namespace attnd::client

#endif  // ATTND_CLIENT_ENCODE_H_
