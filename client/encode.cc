#include "client/encode.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "attnd/v1/attnd.pb.h"
#include "client/hand_over.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/slice.h"

namespace attnd::client {
namespace {

using ::google::protobuf::internal::WireFormatLite;
using ::google::protobuf::io::CodedOutputStream;
using ::google::protobuf::io::StringOutputStream;

// No tensor in memory is larger (x86-64's user half), and three of them do not overflow.
constexpr int64_t kMaxTensorBytes = int64_t{1} << 47;
// Up to this size a payload is copied, which costs no more than to look after what is borrowed.
constexpr int64_t kCopiedBytes = int64_t{8} << 10;

v1::DataType ToProto(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return v1::DATA_TYPE_FLOAT32;
    case DType::kFloat16:
      return v1::DATA_TYPE_FLOAT16;
    case DType::kBFloat16:
      return v1::DATA_TYPE_BFLOAT16;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

v1::Layout ToProto(Layout layout) {
  switch (layout) {
    case Layout::kBHSD:
      return v1::LAYOUT_BHSD;
    case Layout::kBSHD:
      return v1::LAYOUT_BSHD;
    case Layout::kTHD:
      return v1::LAYOUT_THD;
  }
  return v1::LAYOUT_UNSPECIFIED;
}

v1::CausalAlignment ToProto(Causal causal) {
  switch (causal) {
    case Causal::kNone:
      return v1::CAUSAL_ALIGNMENT_UNSPECIFIED;
    case Causal::kTopLeft:
      return v1::CAUSAL_ALIGNMENT_TOP_LEFT;
    case Causal::kBottomRight:
      return v1::CAUSAL_ALIGNMENT_BOTTOM_RIGHT;
  }
  return v1::CAUSAL_ALIGNMENT_UNSPECIFIED;
}

void SetRange(const void* data, const LocalRegion& region, v1::RegionRange* range) {
  range->set_handle(region.handle().data(), region.handle().size());
  range->set_offset_bytes(static_cast<const unsigned char*>(data) - region.bytes().data());
}

void SetSpec(const TensorView& view, v1::TensorSpec* spec) {
  spec->set_dtype(ToProto(view.dtype));
  spec->mutable_shape()->Add(view.shape.begin(), view.shape.end());
  if (view.region == nullptr) return;
  SetRange(view.data, *view.region, spec->mutable_region());
  spec->mutable_strides_elems()->Add(view.strides_elems.begin(), view.strides_elems.end());
}

void SetDestination(const OutputView& view, v1::Destination* destination) {
  SetRange(view.data, *view.region, destination->mutable_region());
  destination->mutable_strides_elems()->Add(view.strides_elems.begin(), view.strides_elems.end());
}

v1::ComputeHeader HeaderOf(const AttentionRequest& request) {
  v1::ComputeHeader header;
  SetSpec(request.q, header.mutable_q());
  SetSpec(request.k, header.mutable_k());
  SetSpec(request.v, header.mutable_v());
  header.set_layout(ToProto(request.layout));
  header.set_causal(ToProto(request.causal));
  if (request.window_left) header.mutable_window()->set_left(*request.window_left);
  if (request.window_right) header.mutable_window()->set_right(*request.window_right);
  if (request.scale) header.set_scale(*request.scale);
  if (request.softcap) header.set_softcap(*request.softcap);
  header.mutable_alibi_slopes()->Add(request.alibi_slopes.begin(), request.alibi_slopes.end());
  header.mutable_cu_seqlens_q()->Add(request.cu_seqlens_q.begin(), request.cu_seqlens_q.end());
  header.mutable_cu_seqlens_kv()->Add(request.cu_seqlens_kv.begin(), request.cu_seqlens_kv.end());
  header.set_want_lse(request.want_lse);
  if (request.o_place && request.o_place->region != nullptr)
    SetDestination(*request.o_place, header.mutable_o_destination());
  if (request.lse_place) SetDestination(*request.lse_place, header.mutable_lse_destination());
  header.set_priority(static_cast<uint32_t>(request.priority));
  header.set_request_id(request.request_id);
  return header;
}

// That it lies there; whether all of it does, the server says.
absl::Status CheckRegion(const char* name, const void* data, const LocalRegion* region) {
  if (region == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name, ".region is null"));
  }
  const absl::Span<unsigned char> bytes = region->bytes();
  if (std::less<const void*>()(data, bytes.data()) ||
      std::less<const void*>()(bytes.data() + bytes.size(), data)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ".data does not lie in ", name, ".region"));
  }
  return absl::OkStatus();
}

absl::Status CheckRegions(const AttentionRequest& request) {
  const bool may = request.transport == Transport::kAuto || request.transport == Transport::kRegion;
  if (NamesRegions(request) && !may) {
    return absl::InvalidArgumentError(
        absl::StrCat("request: tensors lie in regions, and transport is ",
                     TransportName(request.transport), ", must be region or auto"));
  }
  const TensorView* const views[3] = {&request.q, &request.k, &request.v};
  constexpr const char* kNames[3] = {"q", "k", "v"};
  absl::Status status;
  for (int i = 0; i < 3; ++i) {
    if (views[i]->region != nullptr) {
      status.Update(CheckRegion(kNames[i], views[i]->data, views[i]->region));
    } else if (!views[i]->strides_elems.empty()) {
      status.Update(absl::InvalidArgumentError(
          absl::StrCat(kNames[i], ".strides_elems is given, and ", kNames[i], ".region is null")));
    }
  }
  const OutputView none;
  const OutputView& o = request.o_place.value_or(none);
  const OutputView& lse = request.lse_place.value_or(none);
  if (request.o_place && o.region != nullptr) {
    status.Update(CheckRegion("o_place", o.data, o.region));
  } else if (request.o_place && (o.data == nullptr || !o.strides_elems.empty())) {
    status.Update(absl::InvalidArgumentError(
        absl::StrCat("o_place.", o.data == nullptr ? "data" : "strides_elems", " is ",
                     o.data == nullptr ? "null" : "given", ", and o_place.region is null")));
  }
  if (request.lse_place) status.Update(CheckRegion("lse_place", lse.data, lse.region));
  return status;
}

absl::Status CheckView(const char* name, const TensorView& view) {
  for (size_t axis = 0; axis < view.shape.size(); ++axis) {
    if (view.shape[axis] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ".shape[", axis, "] is ", view.shape[axis], ", must be >= 0"));
    }
  }
  const int64_t bytes = view.size_bytes();
  if (bytes > kMaxTensorBytes) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": its shape means ", bytes,
                                                   " bytes or more; an address space has ",
                                                   kMaxTensorBytes));
  }
  if (bytes > 0 && view.data == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ".data is null, and its shape means ", bytes, " bytes"));
  }
  return absl::OkStatus();
}

std::string LengthDelimitedTag(int field, int64_t size_bytes) {
  std::string frame;
  {
    StringOutputStream out(&frame);
    CodedOutputStream coded(&out);
    coded.WriteTag(WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
    coded.WriteVarint32(static_cast<uint32_t>(size_bytes));
  }
  return frame;
}

// gRPC has read a payload for the last time.
void LetGo(void* held) {
  AcquireFromGrpc(held);
  delete static_cast<std::shared_ptr<void>*>(held);
}

}  // namespace

int64_t EncodedRequest::size_bytes() const {
  int64_t total = 0;
  for (int i = 0; i < 3; ++i) total += static_cast<int64_t>(frames[i].size()) + payload_bytes[i];
  return total;
}

namespace {

// The frames of the one message that a unary call is.
absl::Status FrameMessage(const AttentionRequest& request, const v1::ComputeHeader& header,
                          EncodedRequest& encoded) {
  int64_t left = kMaxMessageBytes;
  for (const int64_t payload_bytes : encoded.payload_bytes) {
    if (payload_bytes > left) {
      return absl::InvalidArgumentError(absl::StrCat(
          "request: q, k and v (", request.q.size_bytes(), ", ", request.k.size_bytes(), ", ",
          request.v.size_bytes(), " bytes) pass the ", kMaxMessageBytes,
          " bytes that a message may have; Transport::kStream has no such limit"));
    }
    left -= payload_bytes;
  }
  const size_t header_bytes = header.ByteSizeLong();
  if (header_bytes < static_cast<size_t>(left)) {
    encoded.frames[0] = LengthDelimitedTag(v1::ComputeRequest::kHeaderFieldNumber, header_bytes);
    header.AppendToString(&encoded.frames[0]);
  }
  const int fields[3] = {v1::ComputeRequest::kQFieldNumber, v1::ComputeRequest::kKFieldNumber,
                         v1::ComputeRequest::kVFieldNumber};
  for (int i = 0; i < 3; ++i) {
    encoded.frames[i] += LengthDelimitedTag(fields[i], encoded.payload_bytes[i]);
  }
  if (header_bytes >= static_cast<size_t>(left) || encoded.size_bytes() > kMaxMessageBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "request: header (", header_bytes, " bytes) and tensors (", kMaxMessageBytes - left,
        " bytes) pass the ", kMaxMessageBytes, " bytes that a message may have"));
  }
  return absl::OkStatus();
}

// gRPC may read it until `keep` is gone.
grpc::Slice Borrow(const void* data, int64_t size_bytes, const std::shared_ptr<void>& keep) {
  auto* held = new std::shared_ptr<void>(keep);
  ReleaseToGrpc(held);
  // gRPC only reads; its type for "buffer" is not const.
  return grpc::Slice(const_cast<void*>(data), static_cast<size_t>(size_bytes), &LetGo, held);
}

}  // namespace

bool NamesRegions(const AttentionRequest& request) {
  return request.q.region != nullptr || request.k.region != nullptr ||
         request.v.region != nullptr || request.lse_place ||
         (request.o_place && request.o_place->region != nullptr);
}

absl::Status CheckTensors(const AttentionRequest& request) {
  absl::Status status = CheckRegions(request);
  status.Update(CheckView("q", request.q));
  status.Update(CheckView("k", request.k));
  status.Update(CheckView("v", request.v));
  return status;
}

absl::StatusOr<EncodedRequest> Encode(const AttentionRequest& request) {
  if (absl::Status status = CheckTensors(request); !status.ok()) return status;
  const TensorView* views[3] = {&request.q, &request.k, &request.v};
  EncodedRequest encoded;
  bool is_large = false;
  int64_t left = kStreamFromBytes;
  for (int i = 0; i < 3; ++i) {
    encoded.payloads[i] = views[i]->data;
    encoded.payload_bytes[i] = views[i]->region == nullptr ? views[i]->size_bytes() : 0;
    is_large = is_large || encoded.payload_bytes[i] > left;
    if (!is_large) left -= encoded.payload_bytes[i];
  }
  const v1::ComputeHeader header = HeaderOf(request);
  encoded.is_stream = request.transport == Transport::kStream ||
                      (request.transport == Transport::kAuto && is_large && !NamesRegions(request));
  const bool may_stream = request.transport == Transport::kAuto || encoded.is_stream;
  if (may_stream && !NamesRegions(request)) {
    const std::string bytes = header.SerializeAsString();
    encoded.stream_header =
        LengthDelimitedTag(v1::ComputeStreamRequest::kHeaderFieldNumber, bytes.size()) + bytes;
  }
  if (encoded.is_stream) return encoded;
  if (absl::Status status = FrameMessage(request, header, encoded); !status.ok()) return status;
  return encoded;
}

namespace {

// Of a payload, as it is sent: borrowed, or a copy where it is small.
grpc::Slice ToSlice(const void* data, int64_t size_bytes, const std::shared_ptr<void>& keep) {
  if (size_bytes <= kCopiedBytes) return grpc::Slice(data, static_cast<size_t>(size_bytes));
  return Borrow(data, size_bytes, keep);
}

}  // namespace

grpc::ByteBuffer ToMessage(const EncodedRequest& request, const std::shared_ptr<void>& keep) {
  std::vector<grpc::Slice> slices;
  slices.reserve(6);
  for (int i = 0; i < 3; ++i) {
    slices.emplace_back(request.frames[i]);
    if (request.payload_bytes[i] == 0) continue;
    slices.push_back(ToSlice(request.payloads[i], request.payload_bytes[i], keep));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

grpc::ByteBuffer StreamMessages::Next() {
  grpc::ByteBuffer message;
  if (has_header_) {
    message = NextChunk();
  } else {
    const grpc::Slice header(request_->stream_header);
    message = grpc::ByteBuffer(&header, 1);
    has_header_ = true;
  }
  while (operand_ < 3 && offset_bytes_ == request_->payload_bytes[operand_]) {
    ++operand_;
    offset_bytes_ = 0;
  }
  return message;
}

grpc::ByteBuffer StreamMessages::NextChunk() {
  const int64_t size_bytes =
      std::min(kChunkBytes, request_->payload_bytes[operand_] - offset_bytes_);
  v1::Chunk chunk;
  chunk.set_operand(static_cast<v1::Operand>(v1::OPERAND_Q + operand_));
  chunk.set_offset_bytes(offset_bytes_);
  const std::string inside =
      chunk.SerializeAsString() + LengthDelimitedTag(v1::Chunk::kDataFieldNumber, size_bytes);
  const std::string head = LengthDelimitedTag(v1::ComputeStreamRequest::kChunkFieldNumber,
                                              static_cast<int64_t>(inside.size()) + size_bytes) +
                           inside;
  const auto* const data = static_cast<const char*>(request_->payloads[operand_]) + offset_bytes_;
  const grpc::Slice slices[2] = {grpc::Slice(head), ToSlice(data, size_bytes, keep_)};
  offset_bytes_ += size_bytes;
  return grpc::ByteBuffer(slices, 2);
}

void StreamMessages::LetGo() {
  keep_.reset();
  operand_ = 3;
}

}  // namespace attnd::client
