// Refusals: each with its code, a message that helps, its count, and no harm to the next call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/service/harness.h"
#include "tests/wire/malformed_cases.h"

namespace attnd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Nothing is counted twice or lost.
void ExpectBalance(TestServer& server, int64_t calls) {
  EXPECT_EQ(server->metrics().received(), calls);
  EXPECT_EQ(server->metrics().finished(), calls);
}

double Finished(const TestServer& server, const std::string& code, const std::string& stage) {
  return server.Metric(
      absl::StrCat("attnd_requests_finished_total{code=\"", code, "\",stage=\"", stage, "\"}"));
}

TEST(ErrorsTest, EveryMalformedRequestIsRefusedCountedAndForgotten) {
  TestServer server;
  const v1::ComputeRequest good = MakeRequest({});
  int64_t calls = 0;
  std::map<std::string, int64_t> by_code;
  for (const MalformedCase& malformed : MalformedCases()) {
    SCOPED_TRACE(malformed.name);
    const Outcome outcome = server.ComputeBytes(malformed.bytes);
    EXPECT_EQ(static_cast<int>(outcome.code()), static_cast<int>(malformed.code))
        << outcome.status.error_message();
    for (const std::string& part : malformed.substrings) {
      EXPECT_THAT(outcome.status.error_message(), HasSubstr(part));
    }
    EXPECT_EQ(outcome.Trailer("attnd-version"), ATTND_VERSION);
    ++by_code[absl::StatusCodeToString(malformed.code)];
    EXPECT_TRUE(IsRight(server.Compute(good), good));
    calls += 2;
  }
  EXPECT_GE(calls, 2 * 100);
  ExpectBalance(server, calls);
  for (const auto& [code, count] : by_code) {
    EXPECT_EQ(Finished(server, code, "receive"), static_cast<double>(count)) << code;
  }
  EXPECT_EQ(Finished(server, "OK", "done"), static_cast<double>(calls / 2));
}

TEST(ErrorsTest, S1ANegativeDimensionIsNamed) {
  TestServer server;
  v1::ComputeRequest request = MakeRequest({});
  request.mutable_header()->mutable_k()->set_shape(2, -8);
  const Outcome outcome = server.Compute(request);
  EXPECT_EQ(outcome.code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(outcome.status.error_message(), AllOf(HasSubstr("k"), HasSubstr("-8")));
  const v1::ComputeRequest good = MakeRequest({});
  EXPECT_TRUE(IsRight(server.Compute(good), good));
}

TEST(ErrorsTest, S2DimensionsThatOverflowAreRefused) {
  TestServer server;
  v1::ComputeRequest request = MakeRequest({});
  for (v1::TensorSpec* spec :
       {request.mutable_header()->mutable_q(), request.mutable_header()->mutable_k(),
        request.mutable_header()->mutable_v()}) {
    spec->set_shape(0, int64_t{1} << 40);
    spec->set_shape(2, int64_t{1} << 40);
  }
  EXPECT_EQ(server.Compute(request).code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(ErrorsTest, S4PayloadAndShapeMustAgree) {
  TestServer server;
  v1::ComputeRequest request = MakeRequest({});
  const size_t right = request.v().size();
  request.mutable_v()->pop_back();
  const Outcome outcome = server.Compute(request);
  EXPECT_EQ(outcome.code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(outcome.status.error_message(),
              AllOf(HasSubstr(absl::StrCat(right)), HasSubstr(absl::StrCat(right - 1))));
}

TEST(ErrorsTest, S9AnUnknownOptionIsAnErrorNotSilence) {
  TestServer server;
  v1::ComputeRequest request = MakeRequest({});
  request.mutable_header()
      ->GetReflection()
      ->MutableUnknownFields(request.mutable_header())
      ->AddVarint(777, 1);
  const Outcome outcome = server.Compute(request);
  EXPECT_EQ(outcome.code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(outcome.status.error_message(), HasSubstr("777"));
}

TEST(ErrorsTest, S48MalformedRequestsAreCountedAsFailures) {
  TestServer server;
  EXPECT_EQ(server.ComputeBytes("\xff").code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Finished(server, "INVALID_ARGUMENT", "receive"), 1);
  ExpectBalance(server, 1);
}

TEST(ErrorsTest, TheDeclaredSizeIsHeldAgainstTheCaller) {
  TestServer server;
  const v1::ComputeRequest request = MakeRequest({});
  const size_t size = request.ByteSizeLong();
  const auto declared = [&](const std::string& text) {
    return server.Compute(request, {.declare = CallOptions::Declare::kText, .declared_text = text});
  };
  // More than it is does no harm.
  EXPECT_TRUE(IsRight(declared(absl::StrCat(size + 1)), request));

  const Outcome less = declared(absl::StrCat(size - 1));
  EXPECT_EQ(less.code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(less.status.error_message(),
              AllOf(HasSubstr("attnd-request-bytes"), HasSubstr(absl::StrCat(size)),
                    HasSubstr(absl::StrCat(size - 1))));
  for (const std::string bad : {"", "-1", "12 MB", "0x10", "99999999999999999999", "1.5"}) {
    const Outcome outcome = declared(bad);
    EXPECT_EQ(outcome.code(), grpc::StatusCode::INVALID_ARGUMENT) << bad;
    EXPECT_THAT(outcome.status.error_message(), HasSubstr("attnd-request-bytes"));
  }
  const Outcome over = declared(absl::StrCat(TestOptions().max_unary_bytes + 1));
  EXPECT_EQ(over.code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(over.status.error_message(),
              AllOf(HasSubstr(absl::StrCat(33554433)), HasSubstr(absl::StrCat(33554432))));
  EXPECT_EQ(over.Trailer("grpc-retry-pushback-ms"), "-1");
  EXPECT_EQ(over.Trailer("attnd-version"), ATTND_VERSION);
  ExpectBalance(server, 9);
}

TEST(ErrorsTest, AMessageOverTheLimitIsRefusedThoughNothingWasDeclared) {
  TestServer server;
  for (const int64_t over : {1, 4 << 20}) {
    const std::string bytes(static_cast<size_t>(TestOptions().max_unary_bytes + over), '\0');
    const Outcome outcome = server.ComputeBytes(bytes, {.declare = CallOptions::Declare::kNothing});
    EXPECT_EQ(outcome.code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(outcome.status.error_message(), HasSubstr(absl::StrCat(bytes.size())));
    EXPECT_EQ(outcome.Trailer("grpc-retry-pushback-ms"), "-1");
    EXPECT_EQ(outcome.Trailer("attnd-version"), ATTND_VERSION);
  }
  EXPECT_EQ(Finished(server, "RESOURCE_EXHAUSTED", "receive"), 2);
  const v1::ComputeRequest good = MakeRequest({});
  EXPECT_TRUE(IsRight(server.Compute(good), good));
  ExpectBalance(server, 3);
}

// A caller of the unary method that sends a stream.
grpc::Status StreamOf(const std::shared_ptr<grpc::Channel>& channel,
                      const std::vector<std::string>& messages) {
  RawStream stream(channel, kComputeMethod);
  for (const std::string& message : messages) stream.Write(message);
  return stream.Finish();
}

TEST(ErrorsTest, ACallCarriesExactlyOneMessage) {
  TestServer server;
  const std::string good = MakeRequest({}).SerializeAsString();
  const grpc::Status none = StreamOf(server.channel(), {});
  EXPECT_EQ(none.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(none.error_message(), HasSubstr("no ComputeRequest"));
  // A large one is taken when its caller has ended; a small one at once, whatever follows.
  const std::string large =
      MakeRequest({1, 1, 1, 5000, 1, 128, v1::DATA_TYPE_FLOAT32}).SerializeAsString();
  ASSERT_GT(large.size(), size_t{2} << 20);
  const grpc::Status two = StreamOf(server.channel(), {large, large});
  EXPECT_EQ(two.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(two.error_message(), HasSubstr("more than one"));
  RawStream small(server.channel(), kComputeMethod);
  small.Write(good);
  small.Write(good);
  std::string answer;
  EXPECT_TRUE(small.Read(&answer));
  EXPECT_FALSE(small.Read(&answer)) << "one answer is all";
  const grpc::Status status = small.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::OK) << status.error_message();
  ExpectBalance(server, 3);
}

TEST(ErrorsTest, AnUnknownMethodIsNamed) {
  TestServer server;
  const Outcome outcome = PendingCall(server.channel(), "", {}, "Divine").Wait();
  EXPECT_EQ(outcome.code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(outcome.status.error_message(), HasSubstr("/attnd.v1.AttentionService/Divine"));
  EXPECT_EQ(outcome.Trailer("attnd-version"), ATTND_VERSION);
  ExpectBalance(server, 1);
}

TEST(ErrorsTest, CompressedRequestsAreRefused) {
  TestServer server;
  const auto stub = v1::AttentionService::NewStub(server.channel());
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::ComputeRequest request = MakeRequest({.q_len = 1000, .kv_len = 1000});
  request.mutable_q()->assign(request.q().size(), '\0');
  v1::ComputeResponse response;
  const grpc::Status status = stub->Compute(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("gzip"));
  const v1::ComputeRequest good = MakeRequest({});
  EXPECT_TRUE(IsRight(server.Compute(good), good));
  EXPECT_TRUE(Eventually([&] { return server->metrics().finished() == 2; }));
  EXPECT_EQ(server->metrics().received(), 2);
}

TEST(ErrorsTest, AMessageThatQuotesTheCallerIsBounded) {
  TestServer server;
  v1::ComputeRequest request = MakeRequest({});
  request.mutable_header()->set_request_id(std::string(100'000, '%'));
  const Outcome outcome = server.Compute(request);
  EXPECT_EQ(outcome.code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_LE(outcome.status.error_message().size(), 2100u);
}

TEST(ErrorsTest, AProblemThatTheDeviceCannotServeIsRefusedBeforeTheQueue) {
  auto device = std::make_unique<GatedDevice>();
  device->unsupported_head_dim = 24;
  GatedDevice& gate = *device;
  TestServer server(TestOptions(), std::move(device));
  gate.Hold();
  const Outcome outcome = server.Compute(MakeRequest({.head_dim = 24}));
  EXPECT_EQ(outcome.code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(outcome.status.error_message(), HasSubstr("another device"));
  EXPECT_EQ(Finished(server, "UNIMPLEMENTED", "receive"), 1);
  gate.Release();
}

// One request runs until it is let go, and one fills the queue behind it.
class FullQueueTest : public ::testing::Test {
 protected:
  void SetUp() override {
    gate_->Hold();
    running_ = server_.Begin(request_);
    gate_->WaitUntilHeld();
    queued_ = server_.Begin(request_);
    ASSERT_TRUE(Eventually([&] { return server_.Metric("attnd_queue_requests") == 1; }));
  }
  void ReleaseAndExpectAnswers() {
    gate_->Release();
    EXPECT_TRUE(IsRight(running_->Wait(), request_));
    EXPECT_TRUE(IsRight(queued_->Wait(), request_));
  }
  static server::ServerOptions OneMayWait() {
    server::ServerOptions options = TestOptions();
    options.scheduler.max_queue_requests = 1;
    return options;
  }

  const v1::ComputeRequest request_ = MakeRequest({});
  GatedDevice* const gate_ = new GatedDevice;  // the server's
  TestServer server_{OneMayWait(), std::unique_ptr<server::Device>(gate_)};
  std::unique_ptr<PendingCall> running_;
  std::unique_ptr<PendingCall> queued_;
};

TEST_F(FullQueueTest, SaysWhenToComeAgain) {
  const Outcome refused = server_.Compute(request_);
  EXPECT_EQ(refused.code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_GE(std::stol(refused.Trailer("grpc-retry-pushback-ms")), 0);
  EXPECT_EQ(server_.Metric("attnd_retry_pushback_total"), 1);
  ReleaseAndExpectAnswers();
  ExpectBalance(server_, 3);
}

// Not a byte of the message is waited for.
TEST_F(FullQueueTest, RefusesBeforeTheMessage) {
  for (const char* method : {kComputeMethod, kStreamMethod}) {
    RawStream silent(server_.NewChannel(), method);
    std::string message;
    EXPECT_FALSE(silent.Read(&message)) << method;
    EXPECT_EQ(silent.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(silent.Trailers().count("grpc-retry-pushback-ms"), 1U);
  }
  EXPECT_EQ(Finished(server_, "RESOURCE_EXHAUSTED", "receive"), 2);
  EXPECT_EQ(server_.Metric("attnd_refusals_total{reason=\"queue_requests\"}"), 2);
  EXPECT_EQ(server_.Metric("attnd_retry_pushback_total"), 2);
  ReleaseAndExpectAnswers();
  ExpectBalance(server_, 4);
}

TEST(ErrorsTest, AnAnswerThatCanNeverFitIsRefusedForGood) {
  server::ServerOptions options = TestOptions();
  options.max_unary_bytes = 1 << 20;
  options.arena_bytes = 3 << 20;
  TestServer server(options);
  // head_dim 1 in half precision: with LSE the answer is three times Q.
  v1::ComputeRequest request = MakeRequest(
      {.q_heads = 1, .q_len = 400'000, .kv_len = 1, .head_dim = 1, .dtype = v1::DATA_TYPE_FLOAT16});
  request.mutable_header()->set_want_lse(true);
  const Outcome outcome = server.Compute(request);
  EXPECT_EQ(outcome.code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(outcome.Trailer("grpc-retry-pushback-ms"), "-1");
}

}  // namespace
}  // namespace attnd::testing
