#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "attnd/v1/attnd.pb.h"
#include "client/encode.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"

namespace attnd::client {
namespace {

using ::google::protobuf::internal::WireFormatLite;
using ::google::protobuf::io::CodedInputStream;

absl::Status Broken(absl::string_view what) {
  return absl::InternalError(absl::StrCat("answer: ", what));
}

// Copies straight from gRPC's slices to where the bytes stay, without clearing the room first.
bool ReadBytes(CodedInputStream& in, int64_t message_bytes, std::vector<unsigned char>* bytes) {
  uint32_t length = 0;
  if (!in.ReadVarint32(&length) || length > message_bytes - in.CurrentPosition()) return false;
  bytes->clear();
  bytes->reserve(length);
  while (bytes->size() < length) {
    const void* data = nullptr;
    int available = 0;
    if (!in.GetDirectBufferPointer(&data, &available)) return false;
    const int take = static_cast<int>(std::min<size_t>(available, length - bytes->size()));
    const auto* from = static_cast<const unsigned char*>(data);
    bytes->insert(bytes->end(), from, from + take);
    if (!in.Skip(take)) return false;
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
                  std::vector<unsigned char>* o, std::vector<unsigned char>* lse) {
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
                        Tensor* tensor) {
  if (absl::Status status = FillSpec(name, spec, tensor); !status.ok()) return status;
  const int64_t wanted = has_place ? 0 : tensor->view().size_bytes();
  if (wanted != static_cast<int64_t>(tensor->bytes.size())) {
    return Broken(
        absl::StrCat(name, " has ", tensor->bytes.size(), " bytes, its shape means ", wanted));
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

}  // namespace

absl::StatusOr<AttentionResult> DecodeAnswer(const ExpectedAnswer& expected,
                                             grpc::ByteBuffer message) {
  AttentionResult result;
  result.received_bytes = static_cast<int64_t>(message.Length());
  v1::ComputeResponseHeader header;
  Tensor lse;
  {
    grpc::ProtoBufferReader reader(&message);
    CodedInputStream in(&reader);
    if (!reader.status().ok() ||
        !ReadResponse(in, result.received_bytes, &header, &result.o.bytes, &lse.bytes)) {
      return Broken(
          absl::StrCat("its ", result.received_bytes, " bytes are not a ComputeResponse"));
    }
  }
  absl::Status status = FillTensor("o", header.o(), expected.o_has_place, &result.o);
  if (!status.ok()) return status;
  if (header.has_lse()) {
    status = FillTensor("lse", header.lse(), expected.lse_has_place, &lse);
    if (!status.ok()) return status;
    result.lse = std::move(lse);
  }
  if (status = CheckExpected(expected, result); !status.ok()) return status;
  FillAccount(header, &result);
  return result;
}

StreamedAnswer::StreamedAnswer() = default;
StreamedAnswer::~StreamedAnswer() = default;

absl::Status StreamedAnswer::Add(const ExpectedAnswer& expected, grpc::ByteBuffer message) {
  result_.received_bytes += static_cast<int64_t>(message.Length());
  v1::ComputeStreamResponse part;
  grpc::ProtoBufferReader reader(&message);
  if (!reader.status().ok() || !part.ParseFromZeroCopyStream(&reader)) {
    return Broken("a message is not a ComputeStreamResponse");
  }
  if (part.has_header() == has_header_) {
    return Broken(has_header_ ? "it has two headers" : "a chunk comes before the header");
  }
  if (part.has_header()) return AddHeader(expected, part.header());
  const v1::Chunk& chunk = part.chunk();
  const bool is_lse = chunk.operand() == v1::OPERAND_LSE;
  if (!is_lse && chunk.operand() != v1::OPERAND_O) {
    return Broken(absl::StrCat("a chunk is of operand number ", static_cast<int>(chunk.operand())));
  }
  if (is_lse && !result_.lse) return Broken("lse was not asked for");
  std::vector<unsigned char>& bytes = is_lse ? result_.lse->bytes : result_.o.bytes;
  const auto total = static_cast<int64_t>(bytes.size());
  const auto size = static_cast<int64_t>(chunk.data().size());
  if (chunk.offset_bytes() < 0 || chunk.offset_bytes() > total ||
      size > total - chunk.offset_bytes()) {
    return Broken(absl::StrCat("a chunk of ", size, " bytes at ", chunk.offset_bytes(),
                               " is beyond the ", total, " bytes of its tensor"));
  }
  std::copy(chunk.data().begin(), chunk.data().end(), bytes.begin() + chunk.offset_bytes());
  missing_bytes_ -= size;
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
  result_.o.bytes.resize(static_cast<size_t>(missing_bytes_));
  if (!result_.lse) return absl::OkStatus();
  const int64_t lse_bytes = result_.lse->view().size_bytes();
  // 4 bytes for each row of O, of 2 bytes at least.
  if (lse_bytes > 2 * missing_bytes_) {
    return Broken(absl::StrCat("lse of ", lse_bytes, " bytes does not go with o of ",
                               missing_bytes_, " bytes"));
  }
  result_.lse->bytes.resize(static_cast<size_t>(lse_bytes));
  missing_bytes_ += lse_bytes;
  return absl::OkStatus();
}

absl::StatusOr<AttentionResult> StreamedAnswer::Finish() {
  if (!has_header_) return Broken("it has no header");
  if (missing_bytes_ != 0) {
    return Broken(absl::StrCat("its chunks lack ", missing_bytes_, " bytes"));
  }
  return std::move(result_);
}

}  // namespace attnd::client
