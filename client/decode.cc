#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "attnd/v1/attnd.pb.h"
#include "client/encode.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "kernels/copy.h"

namespace attnd::client {
namespace {

using ::google::protobuf::internal::WireFormatLite;
using ::google::protobuf::io::CodedInputStream;

absl::Status Broken(absl::string_view what) {
  return absl::InternalError(absl::StrCat("answer: ", what));
}

// Where a tensor's bytes go: to memory of the caller's, of as many bytes as the tensor is to have,
// or into a vector.
struct Room {
  unsigned char* own = nullptr;
  int64_t own_bytes = 0;
  std::vector<unsigned char>* bytes = nullptr;
  int64_t came_bytes = 0;
};

// Bytes that follow what is in a vector are appended, so that no room is cleared before it is
// written.
void Place(const unsigned char* from, int64_t count, int64_t at, const Room& room) {
  if (room.own != nullptr) {
    const auto size = static_cast<size_t>(count);
    if (room.own_bytes >= kBeyondCachesBytes) return CopyBeyondCaches(room.own + at, from, size);
    std::memcpy(room.own + at, from, size);
    return;
  }
  std::vector<unsigned char>& to = *room.bytes;
  if (static_cast<size_t>(at) > to.size()) to.resize(static_cast<size_t>(at));
  const int64_t inside = std::min(count, static_cast<int64_t>(to.size()) - at);
  std::copy_n(from, inside, to.begin() + at);
  to.insert(to.end(), from + inside, from + count);
}

// Copies straight from gRPC's slices to where the bytes stay; passes over what has no room there.
bool ReadBytes(CodedInputStream& in, int64_t message_bytes, Room& room) {
  uint32_t length = 0;
  if (!in.ReadVarint32(&length) || length > message_bytes - in.CurrentPosition()) return false;
  room.came_bytes = length;
  if (room.own != nullptr && length != room.own_bytes) return in.Skip(static_cast<int>(length));
  if (room.own == nullptr) {
    room.bytes->clear();
    room.bytes->reserve(length);
  }
  for (int64_t at = 0; at < length;) {
    const void* data = nullptr;
    int available = 0;
    if (!in.GetDirectBufferPointer(&data, &available)) return false;
    const int64_t take = std::min<int64_t>(available, length - at);
    Place(static_cast<const unsigned char*>(data), take, at, room);
    if (!in.Skip(static_cast<int>(take))) return false;
    at += take;
  }
  return true;
}

bool MergeHeader(CodedInputStream& in, v1::ComputeResponseHeader* header) {
  uint32_t length = 0;
  if (!in.ReadVarint32(&length) || length > std::numeric_limits<int>::max()) return false;
  const CodedInputStream::Limit limit = in.PushLimit(static_cast<int>(length));
  if (!header->MergeFromCodedStream(&in) || !in.ConsumedEntireMessage()) return false;
  in.PopLimit(limit);
  return true;
}

// Fields that a newer server adds are passed over.
bool ReadResponse(CodedInputStream& in, int64_t message_bytes, v1::ComputeResponseHeader* header,
                  Room& o, Room& lse) {
  constexpr auto kBytes = WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
  for (;;) {
    const uint32_t tag = in.ReadTag();
    bool good = true;
    if (tag == 0) {
      return in.ConsumedEntireMessage();
    } else if (tag == WireFormatLite::MakeTag(v1::ComputeResponse::kHeaderFieldNumber, kBytes)) {
      good = MergeHeader(in, header);
    } else if (tag == WireFormatLite::MakeTag(v1::ComputeResponse::kOFieldNumber, kBytes)) {
      good = ReadBytes(in, message_bytes, o);
    } else if (tag == WireFormatLite::MakeTag(v1::ComputeResponse::kLseFieldNumber, kBytes)) {
      good = ReadBytes(in, message_bytes, lse);
    } else {
      good = WireFormatLite::SkipField(&in, tag);
    }
    if (!good) return false;
  }
}

}  // namespace

// A message of a stream but for its header and its data: where those bytes lie in it.
struct StreamedAnswer::ScannedPart {
  bool has_header = false;
  int operand = v1::OPERAND_UNSPECIFIED;
  int64_t offset_bytes = 0;
  int64_t data_at = 0;
  int64_t data_bytes = 0;
};

namespace {

bool ScanChunk(CodedInputStream& in, int64_t message_bytes, StreamedAnswer::ScannedPart* part) {
  constexpr auto kVarint = WireFormatLite::WIRETYPE_VARINT;
  constexpr auto kBytes = WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
  uint32_t length = 0;
  if (!in.ReadVarint32(&length) || length > message_bytes - in.CurrentPosition()) return false;
  const CodedInputStream::Limit limit = in.PushLimit(static_cast<int>(length));
  while (const uint32_t tag = in.ReadTag()) {
    uint64_t number = 0;
    if (tag == WireFormatLite::MakeTag(v1::Chunk::kOperandFieldNumber, kVarint)) {
      if (!in.ReadVarint64(&number)) return false;
      part->operand = static_cast<int>(number);
    } else if (tag == WireFormatLite::MakeTag(v1::Chunk::kOffsetBytesFieldNumber, kVarint)) {
      if (!in.ReadVarint64(&number)) return false;
      part->offset_bytes = static_cast<int64_t>(number);
    } else if (tag == WireFormatLite::MakeTag(v1::Chunk::kDataFieldNumber, kBytes)) {
      uint32_t size = 0;
      if (!in.ReadVarint32(&size) || size > message_bytes - in.CurrentPosition()) return false;
      part->data_at = in.CurrentPosition();
      part->data_bytes = size;
      if (!in.Skip(static_cast<int>(size))) return false;
    } else if (!WireFormatLite::SkipField(&in, tag)) {
      return false;
    }
  }
  if (!in.ConsumedEntireMessage()) return false;
  in.PopLimit(limit);
  return true;
}

// Of a header and a chunk, the one that comes last counts.
bool ScanPart(CodedInputStream& in, int64_t message_bytes, v1::ComputeResponseHeader* header,
              StreamedAnswer::ScannedPart* part) {
  constexpr auto kBytes = WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
  while (const uint32_t tag = in.ReadTag()) {
    bool good = true;
    if (tag == WireFormatLite::MakeTag(v1::ComputeStreamResponse::kHeaderFieldNumber, kBytes)) {
      part->has_header = true;
      good = MergeHeader(in, header);
    } else if (tag ==
               WireFormatLite::MakeTag(v1::ComputeStreamResponse::kChunkFieldNumber, kBytes)) {
      part->has_header = false;
      good = ScanChunk(in, message_bytes, part);
    } else {
      good = WireFormatLite::SkipField(&in, tag);
    }
    if (!good) return false;
  }
  return in.ConsumedEntireMessage();
}

bool FromProto(v1::DataType from, DType* to) {
  switch (from) {
    case v1::DATA_TYPE_FLOAT32:
      *to = DType::kFloat32;
      return true;
    case v1::DATA_TYPE_FLOAT16:
      *to = DType::kFloat16;
      return true;
    case v1::DATA_TYPE_BFLOAT16:
      *to = DType::kBFloat16;
      return true;
    default:
      return false;
  }
}

absl::Status FillSpec(const char* name, const v1::TensorSpec& spec, Tensor* tensor) {
  if (!FromProto(spec.dtype(), &tensor->dtype)) {
    return Broken(absl::StrCat(name, " has dtype number ", static_cast<int>(spec.dtype())));
  }
  tensor->shape.assign(spec.shape().begin(), spec.shape().end());
  return absl::OkStatus();
}

absl::Status FillTensor(const char* name, const v1::TensorSpec& spec, bool has_place,
                        int64_t came_bytes, Tensor* tensor) {
  if (absl::Status status = FillSpec(name, spec, tensor); !status.ok()) return status;
  const int64_t wanted = has_place ? 0 : tensor->view().size_bytes();
  if (wanted != came_bytes) {
    return Broken(absl::StrCat(name, " has ", came_bytes, " bytes, its shape means ", wanted));
  }
  return absl::OkStatus();
}

absl::Status CheckExpected(const ExpectedAnswer& expected, const AttentionResult& result) {
  if (result.o.dtype != expected.dtype || result.o.shape != expected.shape) {
    return Broken(absl::StrCat(
        "o is ", DTypeName(result.o.dtype), " [", absl::StrJoin(result.o.shape, ","),
        "], asked for ", DTypeName(expected.dtype), " [", absl::StrJoin(expected.shape, ","), "]"));
  }
  if (result.lse.has_value() != expected.want_lse) {
    return Broken(expected.want_lse ? "lse is missing" : "lse was not asked for");
  }
  if (result.lse && result.lse->dtype != DType::kFloat32) {
    return Broken(absl::StrCat("lse is ", DTypeName(result.lse->dtype), ", must be float32"));
  }
  return absl::OkStatus();
}

void FillAccount(const v1::ComputeResponseHeader& header, AttentionResult* result) {
  const v1::Timing& timing = header.timing();
  result->timing = {timing.queue_us(), timing.upload_us(), timing.run_us(), timing.download_us(),
                    timing.total_us()};
  result->backend = header.backend();
  result->kernel = header.kernel();
  result->device = header.device();
  result->batch_id = header.batch_id();
  result->batch_size = header.batch_size();
  switch (header.transport()) {
    case v1::TRANSPORT_STREAM:
      result->transport = Transport::kStream;
      break;
    case v1::TRANSPORT_REGION:
      result->transport = Transport::kRegion;
      break;
    default:
      result->transport = Transport::kUnary;
  }
}

Room RoomForO(const ExpectedAnswer& expected, AttentionResult& result) {
  Room room;
  room.own = static_cast<unsigned char*>(expected.o_data);
  room.own_bytes = expected.o_bytes;
  room.bytes = &result.o.bytes;
  return room;
}

}  // namespace

absl::StatusOr<AttentionResult> DecodeAnswer(const ExpectedAnswer& expected,
                                             grpc::ByteBuffer message) {
  AttentionResult result;
  result.received_bytes = static_cast<int64_t>(message.Length());
  v1::ComputeResponseHeader header;
  Tensor lse;
  Room o_room = RoomForO(expected, result);
  Room lse_room;
  lse_room.bytes = &lse.bytes;
  {
    grpc::ProtoBufferReader reader(&message);
    CodedInputStream in(&reader);
    if (!reader.status().ok() ||
        !ReadResponse(in, result.received_bytes, &header, o_room, lse_room)) {
      return Broken(
          absl::StrCat("its ", result.received_bytes, " bytes are not a ComputeResponse"));
    }
  }
  absl::Status status =
      FillTensor("o", header.o(), expected.o_has_place, o_room.came_bytes, &result.o);
  if (!status.ok()) return status;
  if (header.has_lse()) {
    status = FillTensor("lse", header.lse(), expected.lse_has_place, lse_room.came_bytes, &lse);
    if (!status.ok()) return status;
    result.lse = std::move(lse);
  }
  if (status = CheckExpected(expected, result); !status.ok()) return status;
  FillAccount(header, &result);
  return result;
}

void CameBytes::Add(int64_t begin, int64_t size_bytes) {
  if (size_bytes == 0) return;
  if (!pieces_.empty() && pieces_.back().second == begin) {
    pieces_.back().second += size_bytes;
  } else {
    pieces_.emplace_back(begin, begin + size_bytes);
  }
}

int64_t CameBytes::Count() const {
  std::vector<std::pair<int64_t, int64_t>> sorted = pieces_;
  std::sort(sorted.begin(), sorted.end());
  int64_t count = 0;
  int64_t end = 0;
  for (const auto& [piece_begin, piece_end] : sorted) {
    count += std::max<int64_t>(piece_end - std::max(piece_begin, end), 0);
    end = std::max(end, piece_end);
  }
  return count;
}

StreamedAnswer::StreamedAnswer() = default;
StreamedAnswer::~StreamedAnswer() = default;

absl::Status StreamedAnswer::Add(const ExpectedAnswer& expected, grpc::ByteBuffer message) {
  const auto message_bytes = static_cast<int64_t>(message.Length());
  result_.received_bytes += message_bytes;
  v1::ComputeResponseHeader header;
  ScannedPart part;
  {
    grpc::ProtoBufferReader reader(&message);
    CodedInputStream in(&reader);
    if (!reader.status().ok() || !ScanPart(in, message_bytes, &header, &part)) {
      return Broken("a message is not a ComputeStreamResponse");
    }
  }
  if (part.has_header == has_header_) {
    return Broken(has_header_ ? "it has two headers" : "a chunk comes before the header");
  }
  if (part.has_header) return AddHeader(expected, header);
  return AddChunk(expected, part, message);
}

absl::Status StreamedAnswer::AddChunk(const ExpectedAnswer& expected, const ScannedPart& chunk,
                                      grpc::ByteBuffer& message) {
  const bool is_lse = chunk.operand == v1::OPERAND_LSE;
  if (!is_lse && chunk.operand != v1::OPERAND_O) {
    return Broken(absl::StrCat("a chunk is of operand number ", chunk.operand));
  }
  if (is_lse && !result_.lse) return Broken("lse was not asked for");
  Tensor& tensor = is_lse ? *result_.lse : result_.o;
  const int64_t total = tensor.view().size_bytes();
  const int64_t size = chunk.data_bytes;
  if (chunk.offset_bytes < 0 || chunk.offset_bytes > total || size > total - chunk.offset_bytes) {
    return Broken(absl::StrCat("a chunk of ", size, " bytes at ", chunk.offset_bytes,
                               " is beyond the ", total, " bytes of its tensor"));
  }
  Room room = RoomForO(expected, result_);
  if (is_lse) {
    room = Room();
    room.bytes = &tensor.bytes;
  }
  grpc::ProtoBufferReader reader(&message);
  if (!reader.Skip(static_cast<int>(chunk.data_at))) return Broken("a chunk cannot be read");
  int64_t at = chunk.offset_bytes;
  for (int64_t left = size; left > 0;) {
    const void* data = nullptr;
    int available = 0;
    if (!reader.Next(&data, &available)) return Broken("a chunk cannot be read");
    const int64_t take = std::min<int64_t>(available, left);
    Place(static_cast<const unsigned char*>(data), take, at, room);
    at += take;
    left -= take;
  }
  missing_bytes_ -= size;
  (is_lse ? came_lse_ : came_o_).Add(chunk.offset_bytes, size);
  return absl::OkStatus();
}

// What was asked for bounds what is allocated.
absl::Status StreamedAnswer::AddHeader(const ExpectedAnswer& expected,
                                       const v1::ComputeResponseHeader& header) {
  has_header_ = true;
  if (absl::Status status = FillSpec("o", header.o(), &result_.o); !status.ok()) return status;
  if (header.has_lse()) {
    result_.lse.emplace();
    if (absl::Status status = FillSpec("lse", header.lse(), &*result_.lse); !status.ok()) {
      return status;
    }
  }
  if (absl::Status status = CheckExpected(expected, result_); !status.ok()) return status;
  FillAccount(header, &result_);
  missing_bytes_ = result_.o.view().size_bytes();
  if (expected.o_data == nullptr) result_.o.bytes.reserve(static_cast<size_t>(missing_bytes_));
  if (!result_.lse) return absl::OkStatus();
  const int64_t lse_bytes = result_.lse->view().size_bytes();
  // 4 bytes for each row of O, of 2 bytes at least.
  if (lse_bytes > 2 * missing_bytes_) {
    return Broken(absl::StrCat("lse of ", lse_bytes, " bytes does not go with o of ",
                               missing_bytes_, " bytes"));
  }
  result_.lse->bytes.reserve(static_cast<size_t>(lse_bytes));
  missing_bytes_ += lse_bytes;
  return absl::OkStatus();
}

absl::StatusOr<AttentionResult> StreamedAnswer::Finish() {
  if (!has_header_) return Broken("it has no header");
  int64_t lacking_bytes = result_.o.view().size_bytes() - came_o_.Count();
  if (result_.lse) lacking_bytes += result_.lse->view().size_bytes() - came_lse_.Count();
  if (missing_bytes_ != 0 || lacking_bytes != 0) {
    return Broken(
        absl::StrCat("its chunks lack ", std::max(missing_bytes_, lacking_bytes), " bytes"));
  }
  return std::move(result_);
}

}  // namespace attnd::client
