// Calls of the Open Inference Protocol.
#ifndef ATTND_TESTS_SERVICE_KSERVE_CALLS_H_
#define ATTND_TESTS_SERVICE_KSERVE_CALLS_H_

#include <string>

#include "inference/grpc_service.grpc.pb.h"
#include "tests/service/harness.h"

namespace attnd::testing {

inline constexpr char kModelInfer[] = "/inference.GRPCInferenceService/ModelInfer";
inline constexpr char kModelStreamInfer[] = "/inference.GRPCInferenceService/ModelStreamInfer";

// How a ModelInfer ended.
struct InferOutcome {
  grpc::Status status;
  inference::ModelInferResponse response;
  std::multimap<std::string, std::string> trailers;

  grpc::StatusCode code() const { return status.error_code(); }
};

// ModelInfer with these bytes as its message.
InferOutcome InferBytes(const TestServer& server, const std::string& bytes);
InferOutcome Infer(const TestServer& server, const inference::ModelInferRequest& request);

// As attnd.v1 would have answered, for IsRight.
Outcome AsCompute(const grpc::Status& status, const inference::ModelInferResponse& response);

}  // namespace attnd::testing

#endif  // ATTND_TESTS_SERVICE_KSERVE_CALLS_H_
