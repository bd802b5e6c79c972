#include "attnd/v1/attnd.pb.h"
#include "server/wire/bytes_prefix.h"
#include "server/wire/stream.h"
#include "server/wire/wire.h"

namespace attnd::server::wire {
namespace {

v1::DataType ToProto(kernels::DType dtype) {
  switch (dtype) {
    case kernels::DType::kF32:
      return v1::DATA_TYPE_FLOAT32;
    case kernels::DType::kF16:
      return v1::DATA_TYPE_FLOAT16;
    case kernels::DType::kBF16:
      return v1::DATA_TYPE_BFLOAT16;
  }
  return v1::DATA_TYPE_UNSPECIFIED;
}

void FillSpec(v1::DataType dtype, const std::vector<int64_t>& shape, v1::TensorSpec& spec) {
  spec.set_dtype(dtype);
  spec.mutable_shape()->Add(shape.begin(), shape.end());
}

void FillTiming(const Timing& from, v1::Timing& to) {
  to.set_queue_us(from.queue_us);
  to.set_upload_us(from.upload_us);
  to.set_run_us(from.run_us);
  to.set_download_us(from.download_us);
  to.set_total_us(from.total_us);
}

void FillHeader(const Request& request, const Answer& answer, v1::Transport transport,
                v1::ComputeResponseHeader& header) {
  const OutputSpec& output = request.output;
  FillSpec(ToProto(output.dtype), output.o_shape, *header.mutable_o());
  if (output.want_lse) FillSpec(v1::DATA_TYPE_FLOAT32, output.lse_shape, *header.mutable_lse());
  FillTiming(answer.timing, *header.mutable_timing());
  header.set_backend(answer.backend);
  header.set_kernel(answer.kernel);
  header.set_device(answer.device);
  header.set_batch_id(answer.batch_id);
  header.set_batch_size(answer.batch_size);
  header.set_received_bytes(request.payload_bytes());
  header.set_sent_bytes(request.answer_bytes());
  header.set_transport(transport);
  header.set_request_id(request.request_id);
}

}  // namespace

EncodedAnswer Encode(const Request& request, const Answer& answer) {
  const OutputSpec& output = request.output;
  v1::ComputeResponse response;
  const v1::Transport transport =
      request.leases == nullptr ? v1::TRANSPORT_UNARY : v1::TRANSPORT_REGION;
  FillHeader(request, answer, transport, *response.mutable_header());

  EncodedAnswer encoded;
  encoded.head = response.SerializeAsString();
  if (output.o_place == nullptr) {
    AppendBytesPrefix(v1::ComputeResponse::kOFieldNumber, output.o_bytes, encoded.head);
  }
  if (output.want_lse && output.lse_place == nullptr) {
    AppendBytesPrefix(v1::ComputeResponse::kLseFieldNumber, output.lse_bytes, encoded.middle);
  }
  return encoded;
}

std::string EncodeStreamHeader(const Request& request, const Answer& answer) {
  v1::ComputeStreamResponse response;
  FillHeader(request, answer, v1::TRANSPORT_STREAM, *response.mutable_header());
  return response.SerializeAsString();
}

std::string EncodeChunkHead(v1::Operand operand, int64_t offset_bytes, int64_t size_bytes) {
  v1::Chunk chunk;
  chunk.set_operand(operand);
  chunk.set_offset_bytes(offset_bytes);
  std::string inside = chunk.SerializeAsString();
  AppendBytesPrefix(v1::Chunk::kDataFieldNumber, size_bytes, inside);
  std::string head;
  AppendBytesPrefix(v1::ComputeStreamResponse::kChunkFieldNumber,
                    static_cast<int64_t>(inside.size()) + size_bytes, head);
  return head + inside;
}

}  // namespace attnd::server::wire
