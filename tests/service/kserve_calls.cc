#include "tests/service/kserve_calls.h"

namespace attnd::testing {

InferOutcome InferBytes(const TestServer& server, const std::string& bytes) {
  RawStream stream(server.channel(), kModelInfer);
  stream.Write(bytes);
  stream.WritesDone();
  InferOutcome outcome;
  std::string message;
  if (stream.Read(&message)) {
    EXPECT_TRUE(outcome.response.ParseFromString(message));
  }
  outcome.status = stream.Finish();
  outcome.trailers = stream.Trailers();
  return outcome;
}

InferOutcome Infer(const TestServer& server, const inference::ModelInferRequest& request) {
  return InferBytes(server, request.SerializeAsString());
}

Outcome AsCompute(const grpc::Status& status, const inference::ModelInferResponse& response) {
  Outcome outcome;
  outcome.status = status;
  EXPECT_EQ(response.outputs_size(), response.raw_output_contents_size());
  for (int i = 0; i < response.outputs_size(); ++i) {
    const bool is_o = response.outputs(i).name() == "O";
    (is_o ? *outcome.response.mutable_o() : *outcome.response.mutable_lse()) =
        response.raw_output_contents(i);
  }
  return outcome;
}

}  // namespace attnd::testing
