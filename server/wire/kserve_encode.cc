#include <vector>

#include "absl/strings/str_cat.h"
#include "inference/grpc_service.pb.h"
#include "server/wire/bytes_prefix.h"
#include "server/wire/kserve.h"

namespace attnd::server::wire {
namespace {

using inference::ModelInferResponse;

const char* DatatypeOf(kernels::DType dtype) {
  switch (dtype) {
    case kernels::DType::kF32:
      return "FP32";
    case kernels::DType::kF16:
      return "FP16";
    case kernels::DType::kBF16:
      return "BF16";
  }
  return "";
}

struct Output {
  const char* name;
  const char* datatype;
  const std::vector<int64_t>& shape;
  int64_t size_bytes;
  const absl::optional<WantedOutputs::Place>& place;
};

void AddOutput(const Output& from, ModelInferResponse& response) {
  ModelInferResponse::InferOutputTensor& output = *response.add_outputs();
  output.set_name(from.name);
  output.set_datatype(from.datatype);
  output.mutable_shape()->Add(from.shape.begin(), from.shape.end());
  if (!from.place) return;
  auto& parameters = *output.mutable_parameters();
  parameters["shared_memory_region"].set_string_param(from.place->region);
  parameters["shared_memory_byte_size"].set_int64_param(from.size_bytes);
  if (from.place->offset_bytes == 0) return;
  parameters["shared_memory_offset"].set_int64_param(from.place->offset_bytes);
}

// What attnd.v1's header says of an answer.
void FillParameters(const Answer& answer, ModelInferResponse& response) {
  auto& parameters = *response.mutable_parameters();
  parameters["queue_us"].set_int64_param(answer.timing.queue_us);
  parameters["upload_us"].set_int64_param(answer.timing.upload_us);
  parameters["run_us"].set_int64_param(answer.timing.run_us);
  parameters["download_us"].set_int64_param(answer.timing.download_us);
  parameters["total_us"].set_int64_param(answer.timing.total_us);
  parameters["kernel"].set_string_param(answer.kernel);
  parameters["device"].set_string_param(answer.device);
  parameters["batch_id"].set_uint64_param(answer.batch_id);
  parameters["batch_size"].set_int64_param(answer.batch_size);
}

ModelInferResponse ResponseOf(const Request& request, const Answer& answer,
                              const WantedOutputs& wanted) {
  const OutputSpec& output = request.output;
  ModelInferResponse response;
  response.set_model_name(kModelName);
  response.set_model_version(kModelVersion);
  response.set_id(request.request_id);
  FillParameters(answer, response);
  if (wanted.o) {
    AddOutput({"O", DatatypeOf(output.dtype), output.o_shape, output.o_bytes, wanted.o_place},
              response);
  }
  if (wanted.lse) {
    AddOutput({"LSE", "FP32", output.lse_shape, output.lse_bytes, wanted.lse_place}, response);
  }
  return response;
}

// The pieces; what was not asked for leaves the answer. What has gone to shared memory has raw
// contents too, empty ones: Triton's clients count on one for each output.
EncodedAnswer PiecesOf(const ModelInferResponse& response, const WantedOutputs& wanted,
                       Answer& answer) {
  constexpr int kRaw = ModelInferResponse::kRawOutputContentsFieldNumber;
  EncodedAnswer encoded;
  encoded.head = response.SerializeAsString();
  if (!wanted.o) answer.o = Buffer();
  if (!wanted.lse) answer.lse = Buffer();
  if (wanted.o) AppendBytesPrefix(kRaw, answer.o.size_bytes(), encoded.head);
  if (wanted.lse) AppendBytesPrefix(kRaw, answer.lse.size_bytes(), encoded.middle);
  return encoded;
}

}  // namespace

EncodedAnswer Inference::Encode(const Request& request, Answer& answer) const {
  return PiecesOf(ResponseOf(request, answer, wanted_), wanted_, answer);
}

EncodedAnswer Inference::EncodeStreamed(const Request& request, Answer& answer) const {
  ModelInferResponse response = ResponseOf(request, answer, wanted_);
  (*response.mutable_parameters())["triton_final_response"].set_bool_param(true);
  EncodedAnswer encoded = PiecesOf(response, wanted_, answer);
  std::string head;
  AppendBytesPrefix(inference::ModelStreamInferResponse::kInferResponseFieldNumber,
                    static_cast<int64_t>(encoded.head.size() + encoded.middle.size()) +
                        answer.o.size_bytes() + answer.lse.size_bytes(),
                    head);
  encoded.head.insert(0, head);
  return encoded;
}

std::string Inference::EncodeFailure(const absl::Status& status) const {
  inference::ModelStreamInferResponse response;
  response.set_error_message(
      absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message()));
  response.mutable_infer_response()->set_id(id_);
  return response.SerializeAsString();
}

}  // namespace attnd::server::wire
