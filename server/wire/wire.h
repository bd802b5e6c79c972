// The only place, with the services, that knows protobuf: bytes to Request, Answer to bytes.
#ifndef ATTND_SERVER_WIRE_WIRE_H_
#define ATTND_SERVER_WIRE_WIRE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/memory/buffer_pool.h"
#include "server/request.h"

namespace attnd::v1 {
class ComputeHeader;
}

namespace attnd::server {
class RegionTable;
}

namespace attnd::server::wire {

struct Limits {
  int64_t max_message_bytes = int64_t{256} << 20;
  // Everything but the payloads counts: the header, hints, their tags.
  int64_t max_header_bytes = int64_t{1} << 20;
  // Of a packed request; a header of 1 MiB could name half a million, and each costs a ProblemSlot.
  int64_t max_sequences = 65536;
  int64_t max_request_id_bytes = 128;
  int max_priority = 9;
  // Whether tensors may lie in memory regions, and there with gaps, or several in one place.
  bool takes_regions = false;
  bool region_gaps = true;
};

// What errors call the parts of a request: as attnd.v1 does, unless told otherwise.
struct FieldNames {
  const char* q = "q";
  const char* k = "k";
  const char* v = "v";
  const char* cu_seqlens_q = "cu_seqlens_q";
  const char* cu_seqlens_kv = "cu_seqlens_kv";
  const char* timeout = "timeout_us";
  const char* request_id = "request_id";
  const char* f32 = "DATA_TYPE_FLOAT32";
  const char* f16 = "DATA_TYPE_FLOAT16";
  const char* bf16 = "DATA_TYPE_BFLOAT16";
};
inline constexpr FieldNames kHeaderNames{};

// A piece of a message, as it lies in memory; not owned.
using ByteSpan = absl::Span<const unsigned char>;

// Where a payload field lies in the whole message; size_bytes 0 and present false if it was not
// there.
struct Payload {
  bool present = false;
  int64_t offset_bytes = 0;
  int64_t size_bytes = 0;
  int64_t count = 0;  // how often it was there
};

// What a first scan of the message finds: the header, parsed, and the payloads, skipped by their
// length. A request that passed Check() has been checked in full.
struct ScannedRequest {
  std::unique_ptr<v1::ComputeHeader> header;
  Payload q;
  Payload k;
  Payload v;

  ScannedRequest();
  ScannedRequest(ScannedRequest&&) noexcept;
  ScannedRequest& operator=(ScannedRequest&&) noexcept;
  ~ScannedRequest();
};

// Reads a serialized ComputeRequest by protobuf's rules: fields in any order, the last of a
// repeated scalar field wins, repeated messages merge. INVALID_ARGUMENT: not a ComputeRequest.
// UNIMPLEMENTED: an unknown field below 1000, at any depth, named by its number.
absl::StatusOr<ScannedRequest> Scan(absl::Span<const ByteSpan> message, const Limits& limits);

// Every check that needs no payload byte: ranks, extents, overflow, payload sizes against shapes,
// dtype agreement, heads, cumulative lengths, scale, window, slopes, priority, timeout, request id,
// enum values. Returns the request without its payload, caller and arrival; its deadline is
// `arrival` + timeout_us, or kNever. INVALID_ARGUMENT names the field and both values;
// UNIMPLEMENTED says what would be needed.
absl::StatusOr<std::unique_ptr<Request>> Check(const v1::ComputeHeader& header, int64_t q_bytes,
                                               int64_t k_bytes, int64_t v_bytes,
                                               const Limits& limits, TimePoint arrival,
                                               const FieldNames& names = kHeaderNames);

struct PayloadBytes {
  int64_t q = 0;
  int64_t k = 0;
  int64_t v = 0;

  int64_t total() const { return q + k + v; }
};

// The same for the header of a stream, whose chunks are yet to come: `sizes` are those that the
// shapes mean.
absl::StatusOr<std::unique_ptr<Request>> CheckStream(const v1::ComputeHeader& header,
                                                     const Limits& limits, TimePoint arrival,
                                                     PayloadBytes& sizes);

// Scan, Check, then the payloads copied into buffers of `pool`, one copy each. Also
// RESOURCE_EXHAUSTED, from the pool, and INVALID_ARGUMENT for what its budget can never hold.
// Tensors in regions of `regions`, which is there if the limits take some, are leased: errors of
// LeaseRegions (region_tensors.h).
absl::StatusOr<std::unique_ptr<Request>> Decode(absl::Span<const ByteSpan> message,
                                                const Limits& limits, TimePoint arrival,
                                                BufferPool& pool, RegionTable* regions = nullptr);

// An answer as it goes out, in order: head, O's bytes, middle, LSE's bytes. `middle` is empty and
// lse not sent where there is no LSE; outputs in regions are not sent. A ComputeResponse parser
// reads the concatenation. `answer`'s buffers are not touched.
struct EncodedAnswer {
  std::string head;    // header field, then O's tag and length, if it is sent
  std::string middle;  // LSE's tag and length
};
EncodedAnswer Encode(const Request& request, const Answer& answer);

// The ComputeStreamResponse that carries the header; chunks follow (stream.h).
std::string EncodeStreamHeader(const Request& request, const Answer& answer);

}  // namespace attnd::server::wire

#endif  // ATTND_SERVER_WIRE_WIRE_H_
