// Answers: right ones, for every way to ask.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/service/harness.h"

namespace attnd::testing {
namespace {

TEST(ComputeTest, EveryDTypeIsRight) {
  const TestServer server;
  for (const v1::DataType dtype :
       {v1::DATA_TYPE_FLOAT32, v1::DATA_TYPE_FLOAT16, v1::DATA_TYPE_BFLOAT16}) {
    v1::ComputeRequest request = MakeRequest({2, 6, 2, 33, 65, 64, dtype});
    request.mutable_header()->set_want_lse(true);
    EXPECT_TRUE(IsRight(server.Compute(request), request)) << v1::DataType_Name(dtype);
  }
}

TEST(ComputeTest, EveryOptionIsRight) {
  const TestServer server;
  v1::ComputeRequest request = MakeRequest({1, 4, 2, 20, 30, 40, v1::DATA_TYPE_FLOAT32});
  v1::ComputeHeader& header = *request.mutable_header();
  header.set_want_lse(true);
  header.set_causal(v1::CAUSAL_ALIGNMENT_TOP_LEFT);
  EXPECT_TRUE(IsRight(server.Compute(request), request));
  header.set_causal(v1::CAUSAL_ALIGNMENT_BOTTOM_RIGHT);
  EXPECT_TRUE(IsRight(server.Compute(request), request));
  header.mutable_window()->set_left(5);
  EXPECT_TRUE(IsRight(server.Compute(request), request));
  header.set_scale(0.3f);
  header.set_softcap(4.0f);
  EXPECT_TRUE(IsRight(server.Compute(request), request));
  for (const float slope : {0.5f, 0.25f, 0.125f, 0.0625f}) header.add_alibi_slopes(slope);
  EXPECT_TRUE(IsRight(server.Compute(request), request));
}

TEST(ComputeTest, TheAnswerTellsOfItself) {
  TestServer server;
  v1::ComputeRequest request = MakeRequest({});
  request.mutable_header()->set_request_id("mine");
  const Outcome outcome = server.Compute(request);
  ASSERT_TRUE(IsRight(outcome, request));
  const v1::ComputeResponseHeader& header = outcome.response.header();
  EXPECT_EQ(header.o().shape_size(), 4);
  EXPECT_FALSE(header.has_lse());
  EXPECT_EQ(header.request_id(), "mine");
  EXPECT_EQ(header.backend(), server->devices()[0].backend);
  EXPECT_EQ(header.kernel().rfind("attn_fwd_f32_", 0), 0u) << header.kernel();
  EXPECT_EQ(header.device(), "cpu");
  EXPECT_EQ(header.batch_size(), 1);
  EXPECT_GT(header.batch_id(), 0u);
  EXPECT_EQ(header.transport(), v1::TRANSPORT_UNARY);
  EXPECT_EQ(header.sent_bytes(), static_cast<int64_t>(outcome.response.o().size()));
  const v1::Timing& timing = header.timing();
  EXPECT_GE(timing.queue_us(), 0);
  EXPECT_GE(timing.total_us(), timing.queue_us() + timing.run_us());
  EXPECT_EQ(outcome.Trailer("attnd-version"), ATTND_VERSION);
}

TEST(ComputeTest, ACallerWithoutOurMetadataIsServed) {
  const TestServer server;
  const v1::ComputeRequest request = MakeRequest({});
  EXPECT_TRUE(
      IsRight(server.Compute(request, {.declare = CallOptions::Declare::kNothing}), request));
  // As code that protoc wrote sends it.
  const auto stub = v1::AttentionService::NewStub(server.channel());
  grpc::ClientContext context;
  Outcome outcome;
  outcome.status = stub->Compute(&context, request, &outcome.response);
  EXPECT_TRUE(IsRight(outcome, request));
}

TEST(ComputeTest, S6AnExtentOfZeroGivesAnEmptyResult) {
  const TestServer server;
  for (const Shape& shape : {Shape{.batch = 0}, Shape{.q_len = 0}}) {
    const Outcome outcome = server.Compute(MakeRequest(shape));
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_TRUE(outcome.response.o().empty());
    EXPECT_EQ(outcome.response.header().o().shape_size(), 4);
  }
  // No key is no extent of the result: zeros, and LSE -inf.
  v1::ComputeRequest request = MakeRequest({.kv_len = 0});
  request.mutable_header()->set_want_lse(true);
  EXPECT_TRUE(IsRight(server.Compute(request), request));
}

TEST(ComputeTest, S8SizesTenTwoTenAreAllExact) {
  const TestServer server;
  std::string first;
  for (const int64_t batch : {10, 2, 10}) {
    const v1::ComputeRequest request = MakeRequest({.batch = batch}, 7);
    const Outcome outcome = server.Compute(request);
    EXPECT_TRUE(IsRight(outcome, request));
    if (first.empty()) first = outcome.response.o();
    EXPECT_EQ(outcome.response.o(), first.substr(0, outcome.response.o().size())) << batch;
  }
}

TEST(ComputeTest, S36ARequestLargerThanTheLargestBatchRunsAlone) {
  server::ServerOptions options = TestOptions();
  options.scheduler.max_batch_bytes = 1000;
  const TestServer server(options);
  const v1::ComputeRequest request = MakeRequest({.q_len = 100, .kv_len = 100});
  const Outcome outcome = server.Compute(request);
  EXPECT_TRUE(IsRight(outcome, request));
  EXPECT_EQ(outcome.response.header().batch_size(), 1);
}

TEST(ComputeTest, S38ShortBesideLongEqualsTheUnbatchedBits) {
  auto device = std::make_unique<GatedDevice>();
  GatedDevice& gate = *device;
  const TestServer server(TestOptions(), std::move(device));
  const v1::ComputeRequest small = MakeRequest({.q_len = 3, .kv_len = 5}, 11);
  const v1::ComputeRequest large = MakeRequest({.q_len = 300, .kv_len = 500}, 12);
  const Outcome alone = server.Compute(small);
  ASSERT_TRUE(IsRight(alone, small));

  gate.Hold();
  const auto blocker = server.Begin(small);
  gate.WaitUntilHeld();
  const auto short_call = server.Begin(small);
  const auto long_call = server.Begin(large);
  ASSERT_TRUE(Eventually([&] { return server.Metric("attnd_queue_requests") == 2; }));
  gate.Release();
  const Outcome together = short_call->Wait();
  EXPECT_EQ(together.response.header().batch_size(), 2);
  EXPECT_EQ(together.response.o(), alone.response.o());
  EXPECT_TRUE(IsRight(long_call->Wait(), large));
}

TEST(ComputeTest, S46EighteenMegabytesWorkOutOfTheBox) {
  server::ServerOptions options;  // all defaults but the ports
  options.listen = options.http_listen = "127.0.0.1:0";
  const TestServer server(options);
  // 6 MiB each of q, k, v; few keys a row, for the sake of the reference.
  const v1::ComputeRequest request = MakeRequest(
      {.batch = 1536, .q_heads = 4, .kv_heads = 4, .q_len = 4, .kv_len = 4, .head_dim = 64});
  ASSERT_GT(request.ByteSizeLong(), size_t{18} << 20);
  EXPECT_TRUE(IsRight(server.Compute(request), request));
}

TEST(ComputeTest, PackedSequencesAreAnswered) {
  const TestServer server;
  // Two sequences of one key each: O is V, whatever the rest.
  v1::ComputeRequest request;
  v1::ComputeHeader& header = *request.mutable_header();
  header.set_layout(v1::LAYOUT_THD);
  for (v1::TensorSpec* spec : {header.mutable_q(), header.mutable_k(), header.mutable_v()}) {
    spec->set_dtype(v1::DATA_TYPE_FLOAT32);
    for (const int64_t extent : {2, 1, 4}) spec->add_shape(extent);
  }
  for (const int64_t offset : {0, 1, 2}) {
    header.add_cu_seqlens_q(offset);
    header.add_cu_seqlens_kv(offset);
  }
  const float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::string bytes(reinterpret_cast<const char*>(values), sizeof(values));
  request.set_q(bytes);
  request.set_k(bytes);
  request.set_v(bytes);
  const Outcome outcome = server.Compute(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.response.o(), bytes);
}

TEST(ComputeTest, GetServerInfoTellsWhatTheServerIs) {
  TestServer server;
  const auto stub = v1::AttentionService::NewStub(server.channel());
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(stub->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.instance_id().size(), 32u);
  EXPECT_EQ(info.version(), ATTND_VERSION);
  EXPECT_EQ(info.backend(), server->devices()[0].backend);
  EXPECT_FALSE(info.backend_reason().empty());
  ASSERT_EQ(info.devices_size(), 1);
  EXPECT_EQ(info.devices(0).id(), "cpu");
  EXPECT_EQ(info.limits().max_unary_bytes(), TestOptions().max_unary_bytes);
  EXPECT_EQ(info.limits().receive_bytes(), TestOptions().receive_bytes);
  EXPECT_EQ(info.limits().max_head_dim(), 256);
  EXPECT_EQ(context.GetServerTrailingMetadata().count("attnd-version"), 1u);

  TestServer other;
  grpc::ClientContext other_context;
  v1::GetServerInfoResponse other_info;
  ASSERT_TRUE(v1::AttentionService::NewStub(other.channel())
                  ->GetServerInfo(&other_context, {}, &other_info)
                  .ok());
  EXPECT_NE(info.instance_id(), other_info.instance_id());
}

}  // namespace
}  // namespace attnd::testing
