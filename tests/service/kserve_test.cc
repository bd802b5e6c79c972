// The Open Inference Protocol: ModelInfer, and what is told of the server and its model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/service/kserve_calls.h"
#include "tests/wire/kserve_cases.h"

namespace attnd::testing {
namespace {

using inference::GRPCInferenceService;
using inference::ModelInferRequest;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(KserveInfer, EveryDatatypeHasTheBitsOfCompute) {
  const TestServer server;
  for (const v1::DataType dtype :
       {v1::DATA_TYPE_FLOAT32, v1::DATA_TYPE_FLOAT16, v1::DATA_TYPE_BFLOAT16}) {
    v1::ComputeRequest request = MakeRequest({2, 6, 2, 33, 65, 64, dtype});
    request.mutable_header()->set_want_lse(true);
    request.mutable_header()->set_request_id("mine");
    const InferOutcome outcome = Infer(server, InferRequestOf(request));
    ASSERT_TRUE(IsRight(AsCompute(outcome.status, outcome.response), request));
    EXPECT_EQ(outcome.response.id(), "mine");
    EXPECT_EQ(outcome.response.model_name(), "attention");
    const Outcome compute = server.Compute(request);
    EXPECT_EQ(outcome.response.raw_output_contents(0), compute.response.o());
    EXPECT_EQ(outcome.response.raw_output_contents(1), compute.response.lse());
    EXPECT_EQ(outcome.trailers.count("attnd-version"), 1u);
  }
}

TEST(KserveInfer, EveryParameterIsRight) {
  const TestServer server;
  v1::ComputeRequest request = MakeRequest({1, 4, 2, 20, 30, 40, v1::DATA_TYPE_FLOAT32});
  v1::ComputeHeader& header = *request.mutable_header();
  header.set_want_lse(true);
  const auto expect_right = [&] {
    const InferOutcome outcome = Infer(server, InferRequestOf(request));
    EXPECT_TRUE(IsRight(AsCompute(outcome.status, outcome.response), request));
  };
  header.set_causal(v1::CAUSAL_ALIGNMENT_TOP_LEFT);
  expect_right();
  header.set_causal(v1::CAUSAL_ALIGNMENT_BOTTOM_RIGHT);
  expect_right();
  header.mutable_window()->set_left(5);
  header.mutable_window()->set_right(3);
  expect_right();
  header.set_scale(0.3f);
  header.set_softcap(4.0f);
  header.set_priority(2);
  header.set_timeout_us(60'000'000);
  expect_right();
}

TEST(KserveInfer, KeysWithoutAHeadAxisAreOneHead) {
  const TestServer server;
  const v1::ComputeRequest request = MakeRequest({.q_heads = 3, .kv_heads = 1});
  ModelInferRequest message = InferRequestOf(request);
  for (int i = 1; i < 3; ++i) {
    auto& shape = *message.mutable_inputs(i)->mutable_shape();
    shape.erase(shape.begin() + 1);
  }
  const InferOutcome outcome = Infer(server, message);
  EXPECT_TRUE(IsRight(AsCompute(outcome.status, outcome.response), request));
}

TEST(KserveInfer, PackedSequences) {
  const TestServer server;
  const InferOutcome outcome = Infer(server, PackedInfer());
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  ASSERT_EQ(outcome.response.outputs_size(), 2);
  EXPECT_THAT(outcome.response.outputs(0).shape(), ElementsAre(7, 4, 8));
  EXPECT_THAT(outcome.response.outputs(1).shape(), ElementsAre(4, 7));
}

TEST(KserveInfer, LseAlone) {
  const TestServer server;
  v1::ComputeRequest request = MakeRequest({});
  request.mutable_header()->set_want_lse(true);
  ModelInferRequest message = InferRequestOf(request);
  message.clear_outputs();
  message.add_outputs()->set_name("LSE");
  const InferOutcome outcome = Infer(server, message);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_THAT(outcome.response.raw_output_contents(),
              ElementsAre(server.Compute(request).response.lse()));
}

TEST(KserveInfer, LargeTensorsToo) {
  const TestServer server;
  const v1::ComputeRequest request =
      MakeRequest({1, 8, 1, 3000, 16, 128, v1::DATA_TYPE_FLOAT16}, 3);
  const InferOutcome outcome = Infer(server, InferRequestOf(request));
  EXPECT_TRUE(IsRight(AsCompute(outcome.status, outcome.response), request));
}

TEST(KserveInfer, EveryMalformedRequestIsRefusedCountedAndForgotten) {
  TestServer server;
  const v1::ComputeRequest request = MakeRequest({});
  const ModelInferRequest good = InferRequestOf(request);
  int64_t calls = 0;
  for (const MalformedCase& malformed : MalformedInferCases()) {
    SCOPED_TRACE(malformed.name);
    const InferOutcome outcome = InferBytes(server, malformed.bytes);
    EXPECT_EQ(static_cast<int>(outcome.code()), static_cast<int>(malformed.code))
        << outcome.status.error_message();
    for (const std::string& part : malformed.substrings) {
      EXPECT_THAT(outcome.status.error_message(), HasSubstr(part));
    }
    EXPECT_EQ(outcome.trailers.count("attnd-version"), 1u);
    const InferOutcome next = Infer(server, good);
    EXPECT_TRUE(IsRight(AsCompute(next.status, next.response), request));
    calls += 2;
  }
  EXPECT_EQ(server->metrics().received(), calls);
  EXPECT_EQ(server->metrics().finished(), calls);
  EXPECT_EQ(server.Metric("attnd_requests_finished_total{code=\"OK\",stage=\"done\"}"),
            static_cast<double>(calls / 2));
}

TEST(KserveInfer, ACallCarriesExactlyOneMessage) {
  const TestServer server;
  RawStream none(server.channel(), kModelInfer);
  const grpc::Status status = none.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("no ModelInferRequest"));
}

TEST(KserveInfer, TheTimeoutHoldsInTheQueue) {
  auto device = std::make_unique<GatedDevice>();
  GatedDevice& gate = *device;
  const TestServer server(TestOptions(), std::move(device));
  const v1::ComputeRequest request = MakeRequest({});
  gate.Hold();
  const auto running = server.Begin(request);
  gate.WaitUntilHeld();
  ModelInferRequest message = InferRequestOf(request);
  (*message.mutable_parameters())["timeout"].set_int64_param(20'000);
  EXPECT_EQ(Infer(server, message).code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  gate.Release();
  EXPECT_TRUE(IsRight(running->Wait(), request));
}

// Both APIs wait in one queue, and run together.
TEST(KserveInfer, RunsInOneBatchWithCompute) {
  auto device = std::make_unique<GatedDevice>();
  GatedDevice& gate = *device;
  const TestServer server(TestOptions(), std::move(device));
  const v1::ComputeRequest request = MakeRequest({});
  gate.Hold();
  const auto running = server.Begin(request);
  gate.WaitUntilHeld();
  const auto waiting = server.Begin(request);
  RawStream infer(server.channel(), kModelInfer);
  infer.Write(InferRequestOf(request).SerializeAsString());
  infer.WritesDone();
  ASSERT_TRUE(Eventually([&] { return server.Metric("attnd_queue_requests") == 2; }));
  gate.Release();
  std::string bytes;
  ASSERT_TRUE(infer.Read(&bytes));
  inference::ModelInferResponse response;
  ASSERT_TRUE(response.ParseFromString(bytes));
  EXPECT_EQ(response.parameters().at("batch_size").int64_param(), 2);
  EXPECT_EQ(waiting->Wait().response.header().batch_size(), 2);
  EXPECT_TRUE(IsRight(running->Wait(), request));
}

class KserveServiceTest : public ::testing::Test {
 protected:
  template <typename Method, typename Request, typename Response>
  grpc::Status Call(Method method, const Request& request, Response& response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    const auto stub = GRPCInferenceService::NewStub(server_.channel());
    const grpc::Status status = (stub.get()->*method)(&context, request, &response);
    EXPECT_EQ(context.GetServerTrailingMetadata().count("attnd-version"), 1u);
    return status;
  }
  using Stub = GRPCInferenceService::Stub;

  TestServer server_;
};

TEST_F(KserveServiceTest, AReadyServerSaysSo) {
  inference::ServerLiveResponse live;
  EXPECT_TRUE(Call(&Stub::ServerLive, inference::ServerLiveRequest(), live).ok());
  EXPECT_TRUE(live.live());
  inference::ServerReadyResponse ready;
  EXPECT_TRUE(Call(&Stub::ServerReady, inference::ServerReadyRequest(), ready).ok());
  EXPECT_TRUE(ready.ready());
  inference::ModelReadyRequest model;
  inference::ModelReadyResponse model_ready;
  model.set_name("attention");
  EXPECT_TRUE(Call(&Stub::ModelReady, model, model_ready).ok());
  EXPECT_TRUE(model_ready.ready());
  model.set_version("1");
  EXPECT_TRUE(Call(&Stub::ModelReady, model, model_ready).ok());
  model.set_version("3");
  const grpc::Status status = Call(&Stub::ModelReady, model, model_ready);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), AllOf(HasSubstr("\"attention\""), HasSubstr("\"3\"")));
}

TEST_F(KserveServiceTest, MetadataAndConfigDescribeTheModel) {
  inference::ServerMetadataResponse server;
  ASSERT_TRUE(Call(&Stub::ServerMetadata, inference::ServerMetadataRequest(), server).ok());
  EXPECT_EQ(server.name(), "attnd");
  EXPECT_EQ(server.version(), ATTND_VERSION);
  EXPECT_THAT(server.extensions(), ::testing::Contains("model_configuration"));

  inference::ModelMetadataRequest request;
  request.set_name("attention");
  inference::ModelMetadataResponse metadata;
  ASSERT_TRUE(Call(&Stub::ModelMetadata, request, metadata).ok());
  EXPECT_THAT(metadata.versions(), ElementsAre("1"));
  ASSERT_EQ(metadata.inputs_size(), 3);
  EXPECT_EQ(metadata.inputs(0).name(), "Q");
  EXPECT_EQ(metadata.inputs(0).datatype(), "FP32");
  EXPECT_THAT(metadata.inputs(0).shape(), ElementsAre(-1, -1, -1, -1));
  ASSERT_EQ(metadata.outputs_size(), 2);

  inference::ModelConfigRequest config_request;
  config_request.set_name("attention");
  inference::ModelConfigResponse config;
  ASSERT_TRUE(Call(&Stub::ModelConfig, config_request, config).ok());
  EXPECT_EQ(config.config().max_batch_size(), 0);
  ASSERT_EQ(config.config().input_size(), 3);
  // For a model with optional inputs perf_analyzer uses no shared memory.
  for (const auto& input : config.config().input()) EXPECT_FALSE(input.optional());
  EXPECT_FALSE(config.config().model_transaction_policy().decoupled());

  config_request.set_name("other");
  EXPECT_EQ(Call(&Stub::ModelConfig, config_request, config).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST_F(KserveServiceTest, TheRepositoryHoldsTheModel) {
  inference::RepositoryIndexRequest request;
  inference::RepositoryIndexResponse response;
  ASSERT_TRUE(Call(&Stub::RepositoryIndex, request, response).ok());
  ASSERT_EQ(response.models_size(), 1);
  EXPECT_EQ(response.models(0).name(), "attention");
  EXPECT_EQ(response.models(0).state(), "READY");
  request.set_repository_name("elsewhere");
  EXPECT_EQ(Call(&Stub::RepositoryIndex, request, response).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(KserveServiceTest, WhatIsNotHereSaysWhy) {
  inference::RepositoryModelLoadResponse load;
  const grpc::Status loaded =
      Call(&Stub::RepositoryModelLoad, inference::RepositoryModelLoadRequest(), load);
  EXPECT_EQ(loaded.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(loaded.error_message(),
              AllOf(HasSubstr("RepositoryModelLoad"), HasSubstr("part of the server")));
  inference::LogSettingsResponse log;
  const grpc::Status logged = Call(&Stub::LogSettings, inference::LogSettingsRequest(), log);
  EXPECT_EQ(logged.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(logged.error_message(), HasSubstr("flags"));
  EXPECT_EQ(server_->metrics().finished(), server_->metrics().received());
}

TEST_F(KserveServiceTest, ReflectionListsIt) {
  RawStream stream(server_.channel(),
                   "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo");
  // ServerReflectionRequest {list_services = ""}
  ASSERT_TRUE(stream.Write(std::string("\x3a\x00", 2)));
  std::string message;
  ASSERT_TRUE(stream.Read(&message));
  EXPECT_THAT(message, HasSubstr("inference.GRPCInferenceService"));
}

TEST_F(KserveServiceTest, HealthKnowsIt) {
  const std::string name = GRPCInferenceService::service_full_name();
  RawStream stream(server_.channel(), "/grpc.health.v1.Health/Check");
  // HealthCheckRequest {service = name}, HealthCheckResponse {status = SERVING}
  ASSERT_TRUE(
      stream.Write(absl::StrCat("\x0a", std::string(1, static_cast<char>(name.size())), name)));
  std::string message;
  ASSERT_TRUE(stream.Read(&message));
  EXPECT_EQ(message, "\x08\x01");
}

TEST(KserveDrain, ReadinessIsThatOfTheServer) {
  server::ServerOptions options = TestOptions();
  options.drain_delay_ms = 500;
  TestServer server(options);
  std::thread drain([&] { EXPECT_TRUE(server->Drain()); });
  ASSERT_TRUE(Eventually([&] { return server->readiness() == server::Readiness::kDraining; }));
  const auto stub = GRPCInferenceService::NewStub(server.channel());
  {
    grpc::ClientContext context;
    inference::ServerReadyResponse ready;
    EXPECT_TRUE(stub->ServerReady(&context, {}, &ready).ok());
    EXPECT_FALSE(ready.ready());
  }
  {
    grpc::ClientContext context;
    inference::ServerLiveResponse live;
    EXPECT_TRUE(stub->ServerLive(&context, {}, &live).ok());
    EXPECT_TRUE(live.live());
  }
  {
    grpc::ClientContext context;
    inference::RepositoryIndexResponse index;
    EXPECT_TRUE(stub->RepositoryIndex(&context, {}, &index).ok());
    EXPECT_EQ(index.models(0).state(), "UNAVAILABLE");
    EXPECT_EQ(index.models(0).reason(), "draining");
  }
  // Still accepted within the delay; refused after it.
  const v1::ComputeRequest request = MakeRequest({});
  const InferOutcome within = Infer(server, InferRequestOf(request));
  EXPECT_TRUE(IsRight(AsCompute(within.status, within.response), request));
  drain.join();
  EXPECT_EQ(Infer(server, InferRequestOf(request)).code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace attnd::testing
