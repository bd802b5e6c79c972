// Problems that come in pieces: the messages of ComputeStream.
#ifndef ATTND_SERVER_WIRE_STREAM_H_
#define ATTND_SERVER_WIRE_STREAM_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "attnd/v1/attnd.pb.h"
#include "server/wire/wire.h"

namespace attnd::server::wire {

// A ComputeStreamRequest without its payload: either the header or a chunk.
struct StreamPart {
  std::unique_ptr<v1::ComputeHeader> header;  // null: a chunk
  v1::Operand operand = v1::OPERAND_UNSPECIFIED;
  int64_t offset_bytes = 0;
  Payload data;  // where it lies in the message
};

// Reads one message by protobuf's rules, but that it must hold exactly one part, once.
// INVALID_ARGUMENT: it does not, or is no ComputeStreamRequest. UNIMPLEMENTED: an unknown field.
absl::StatusOr<StreamPart> ScanStreamPart(absl::Span<const ByteSpan> message, const Limits& limits);

// A request whose payload arrives in chunks, in any order, each copied once to where it stays.
//
// Invariant: `pieces` of an operand are the ranges that have arrived, apart from each other.
class Upload {
 public:
  // Pieces of one operand that may stand apart at a time: chunks in any order, but not a list
  // without a bound. A gap before each is the worst case.
  static constexpr int64_t kMaxPieces = 4096;

  // `request` comes from CheckStream with these sizes. Takes all the memory at once, or none:
  // RESOURCE_EXHAUSTED or INVALID_ARGUMENT from the pool, and `request` is left alone.
  static absl::StatusOr<Upload> Begin(std::unique_ptr<Request>& request, const PayloadBytes& sizes,
                                      BufferPool& pool);

  // INVALID_ARGUMENT naming operand and bytes: none of q, k, v; beyond its end; there already.
  absl::Status Add(absl::Span<const ByteSpan> message, const StreamPart& chunk);

  // The request, if every byte is there; INVALID_ARGUMENT naming what is missing.
  absl::StatusOr<std::unique_ptr<Request>> Finish();

  int64_t received_bytes() const;
  const Request& request() const { return *request_; }

 private:
  struct Operand {
    const char* name = "";
    Buffer* buffer = nullptr;
    int64_t received_bytes = 0;
    std::map<int64_t, int64_t> pieces;  // first byte to one past the last
  };

  Upload() = default;
  static absl::Status Insert(Operand& operand, int64_t begin, int64_t end);

  std::unique_ptr<Request> request_;
  Operand operands_[3];  // q, k, v
};

// What stands in front of a chunk's data in a ComputeStreamResponse. Size below 2 GiB.
std::string EncodeChunkHead(v1::Operand operand, int64_t offset_bytes, int64_t size_bytes);

}  // namespace attnd::server::wire

#endif  // ATTND_SERVER_WIRE_STREAM_H_
