// ComputeStream: the answers of Compute, bit for bit; its errors, deadlines and bounds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "tests/service/harness.h"

namespace attnd::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr Shape kMiddling{.batch = 4, .q_heads = 2, .q_len = 100, .kv_len = 60, .head_dim = 64};

class StreamTest : public ::testing::Test {
 protected:
  explicit StreamTest(const server::ServerOptions& options = TestOptions())
      : device_(new GatedDevice), server_(options, std::unique_ptr<server::Device>(device_)) {}

  Outcome Stream(const std::vector<std::string>& messages,
                 const CallOptions& options = {.declare = CallOptions::Declare::kNothing}) {
    return ComputeStream(server_.channel(), messages, options);
  }
  ::testing::AssertionResult IsIdle() {
    return Eventually([&] {
      return server_->metrics().received() == server_->metrics().finished() &&
             server_.Metric("attnd_receive_used_bytes") == 0 &&
             server_.Metric("attnd_queue_requests") == 0 &&
             server_.Metric("attnd_pool_used_bytes") == 0;
    });
  }
  // Refused as this, and the next one is right.
  void ExpectRefused(const std::vector<std::string>& messages, grpc::StatusCode code,
                     const std::string& text) {
    const Outcome outcome = Stream(messages);
    EXPECT_EQ(outcome.code(), code) << outcome.status.error_message();
    EXPECT_THAT(outcome.status.error_message(), HasSubstr(text));
    const v1::ComputeRequest good = MakeRequest({});
    EXPECT_TRUE(IsRight(Stream(StreamMessages(good, 100)), good)) << "after: " << text;
    EXPECT_TRUE(IsIdle());
  }

  GatedDevice* const device_;  // the server's
  TestServer server_;
};

TEST_F(StreamTest, AnswersTheBitsOfCompute) {
  for (const v1::DataType dtype :
       {v1::DATA_TYPE_FLOAT32, v1::DATA_TYPE_FLOAT16, v1::DATA_TYPE_BFLOAT16}) {
    for (const bool want_lse : {false, true}) {
      Shape shape = kMiddling;
      shape.dtype = dtype;
      v1::ComputeRequest request = MakeRequest(shape);
      request.mutable_header()->set_want_lse(want_lse);
      request.mutable_header()->set_request_id("bits");
      const Outcome unary = server_.Compute(request);
      for (const size_t chunk_bytes : {size_t{999}, size_t{1} << 20}) {
        const Outcome stream = Stream(StreamMessages(request, chunk_bytes));
        ASSERT_TRUE(IsRight(stream, request));
        EXPECT_EQ(stream.response.o(), unary.response.o());
        EXPECT_EQ(stream.response.lse(), unary.response.lse());
        const v1::ComputeResponseHeader& header = stream.response.header();
        EXPECT_EQ(header.transport(), v1::TRANSPORT_STREAM);
        EXPECT_EQ(header.request_id(), "bits");
        EXPECT_EQ(header.received_bytes(), unary.response.header().received_bytes());
        EXPECT_EQ(header.sent_bytes(), unary.response.header().sent_bytes());
      }
    }
  }
  EXPECT_EQ(server_.Metric(R"(attnd_calls_total{transport="stream"})"), 12);
  EXPECT_EQ(server_.Metric(R"(attnd_calls_total{transport="unary"})"), 6);
  EXPECT_TRUE(IsIdle());
}

TEST_F(StreamTest, ChunksComeInAnyOrder) {
  const v1::ComputeRequest request = MakeRequest(kMiddling);
  std::vector<std::string> messages = StreamMessages(request, 4096);
  std::reverse(messages.begin() + 1, messages.end());
  EXPECT_TRUE(IsRight(Stream(messages), request));
}

TEST_F(StreamTest, AnAnswerOfSeveralChunks) {
  const v1::ComputeRequest request =
      MakeRequest({.q_heads = 8, .q_len = 1500, .kv_len = 3, .head_dim = 64});  // O: 3 MB
  EXPECT_TRUE(IsRight(Stream(StreamMessages(request, 1 << 20)), request));
  EXPECT_TRUE(IsIdle());
}

TEST_F(StreamTest, LargeChunksAreCopiedByWorkersWhileMoreComes) {
  const v1::ComputeRequest request =
      MakeRequest({.q_heads = 8, .q_len = 1500, .kv_len = 3, .head_dim = 64});  // Q: 3 MB
  std::vector<std::string> messages = StreamMessages(request, 4 << 20);
  EXPECT_TRUE(IsRight(Stream(messages), request));
  // What is wrong is found while the next ones are read.
  messages.insert(messages.begin() + 1, 10, std::string(messages[1]));
  ExpectRefused(messages, grpc::StatusCode::INVALID_ARGUMENT, "are there already");
}

// S53: what nobody reads fills the windows, and holds up nobody else on the connection.
TEST_F(StreamTest, S53AnswersThatAreNotReadStopNothingElse) {
  const v1::ComputeRequest request =
      MakeRequest({.q_heads = 8, .q_len = 16000, .kv_len = 3, .head_dim = 64});  // O: 32 MB
  const std::vector<std::string> messages = StreamMessages(request, 1 << 20);
  const v1::ComputeRequest small = MakeRequest({});
  // Its threads serve the connection from then on, though nobody waits on it.
  EXPECT_TRUE(IsRight(server_.Compute(small), small));
  // One that declares nothing takes all the memory for receiving, and the other might come first.
  const CallOptions declared{.declare = CallOptions::Declare::kText, .declared_text = "1100000"};
  RawStream first(server_.channel(), kStreamMethod, declared);
  RawStream second(server_.channel(), kStreamMethod, declared);
  WriteAll(first, messages);
  WriteAll(second, messages);
  // Both are computed, and both answers stand: the windows do not take them.
  const double answers_bytes = 2 * 8 * 16000 * 64 * 4;
  ASSERT_TRUE(Eventually([&] {
    return device_->ran().size() >= 3 && server_.Metric("attnd_pool_used_bytes") >= answers_bytes &&
           server_.Metric("attnd_pool_used_bytes") < 1.5 * answers_bytes;
  }));
  EXPECT_TRUE(IsRight(server_.Compute(small), small));
  EXPECT_TRUE(IsRight(ReadAnswer(second), request));
  EXPECT_TRUE(IsRight(ReadAnswer(first), request));
  EXPECT_TRUE(IsIdle());
}

TEST_F(StreamTest, EmptyTensorsHaveNoChunks) {
  for (const Shape& shape : {Shape{.q_len = 0}, Shape{.kv_len = 0}, Shape{.batch = 0}}) {
    const v1::ComputeRequest request = MakeRequest(shape);
    const Outcome outcome = Stream(StreamMessages(request, 64));
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_EQ(outcome.response.o(), std::string(request.q().size(), '\0'));
  }
}

TEST_F(StreamTest, RefusesStreamsThatAreNone) {
  const std::vector<std::string> good = StreamMessages(MakeRequest(kMiddling), 8192);
  const auto invalid = grpc::StatusCode::INVALID_ARGUMENT;
  ExpectRefused({}, invalid, "the stream carries no header");
  ExpectRefused({good[1]}, invalid, "begins with its header");
  ExpectRefused({good[0]}, invalid, "byte 0 is missing");
  ExpectRefused({good[0], good[1], good[0]}, invalid, "more than one header");
  ExpectRefused({good[0], good[1], good[1]}, invalid, "are there already");
  std::vector<std::string> gap = good;
  gap.erase(gap.begin() + 2);
  ExpectRefused(gap, invalid, "of 204800: byte 8192 is missing");
  ExpectRefused({good[0], "nonsense"}, invalid, "not a ComputeStreamRequest");
  ExpectRefused({good[0], ""}, invalid, "0 headers and 0 chunks");
  std::vector<std::string> long_one = good;
  long_one.push_back(good.back());
  ExpectRefused(long_one, invalid, "are there already");
  EXPECT_EQ(
      server_.Metric(R"(attnd_requests_finished_total{code="INVALID_ARGUMENT",stage="receive"})"),
      9);
}

TEST_F(StreamTest, HeadersAreCheckedAsThoseOfCompute) {
  v1::ComputeRequest request = MakeRequest({});
  request.mutable_header()->mutable_q()->set_shape(1, 3);
  request.mutable_header()->mutable_k()->set_shape(1, 2);
  request.mutable_header()->mutable_v()->set_shape(1, 2);
  request.mutable_q()->resize(request.q().size() / 2 * 3);
  request.mutable_k()->resize(request.k().size() * 2);
  request.mutable_v()->resize(request.v().size() * 2);
  const Outcome unary = server_.Compute(request);
  EXPECT_EQ(unary.code(), grpc::StatusCode::INVALID_ARGUMENT);
  ExpectRefused(StreamMessages(request, 64), unary.code(), unary.status.error_message());
  device_->unsupported_head_dim = 32;
  ExpectRefused(StreamMessages(MakeRequest({.head_dim = 32}), 64), grpc::StatusCode::UNIMPLEMENTED,
                "would need another device");
}

TEST_F(StreamTest, TheHeaderAloneIsEnoughToRefuseWhatIsTooLarge) {
  v1::ComputeRequest request = MakeRequest({});
  request.mutable_header()->mutable_q()->set_shape(2, 1 << 24);
  ExpectRefused({StreamMessages(request, 1 << 20)[0]}, grpc::StatusCode::RESOURCE_EXHAUSTED,
                "(max_stream_bytes)");
}

TEST_F(StreamTest, AMessageLargerThanDeclaredIsRefused) {
  const v1::ComputeRequest request = MakeRequest(kMiddling);
  const CallOptions declared{.declare = CallOptions::Declare::kText, .declared_text = "5000"};
  EXPECT_TRUE(IsRight(Stream(StreamMessages(request, 4096), declared), request));
  const Outcome outcome = Stream(StreamMessages(request, 6000), declared);
  EXPECT_THAT(outcome.status.error_message(), HasSubstr("attnd-request-bytes declared 5000"));
  EXPECT_TRUE(IsIdle());
}

TEST_F(StreamTest, CancelledAtAnyMomentLeavesNothing) {
  const v1::ComputeRequest request = MakeRequest(kMiddling);
  const std::vector<std::string> messages = StreamMessages(request, 8192);
  for (size_t sent = 0; sent <= messages.size(); ++sent) {
    RawStream stream(server_.channel(), kStreamMethod);
    for (size_t i = 0; i < sent; ++i) ASSERT_TRUE(stream.Write(messages[i]));
    if (sent == messages.size()) stream.WritesDone();
    stream.Cancel();
    EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(IsIdle());
  EXPECT_TRUE(IsRight(Stream(messages), request));
}

TEST_F(StreamTest, WhatAnAbortedOneBroughtIsCounted) {
  const std::vector<std::string> messages = StreamMessages(MakeRequest(kMiddling), 8192);
  ExpectRefused({messages[0], messages[1], messages[2], messages[1]},
                grpc::StatusCode::INVALID_ARGUMENT, "are there already");
  const double good_bytes = MakeRequest({}).q().size() + 2 * MakeRequest({}).k().size();
  EXPECT_EQ(server_.Metric(R"(attnd_received_bytes_total{transport="stream"})"),
            2 * 8192 + good_bytes);
}

TEST_F(StreamTest, ACancelledOneLeavesTheQueueAtOnce) {
  device_->Hold();
  const auto blocker = server_.Begin(MakeRequest({}));
  device_->WaitUntilHeld();
  RawStream stream(server_.channel(), kStreamMethod);
  for (const std::string& message : StreamMessages(MakeRequest(kMiddling), 1 << 20)) {
    ASSERT_TRUE(stream.Write(message));
  }
  stream.WritesDone();
  ASSERT_TRUE(Eventually([&] { return server_.Metric("attnd_queue_requests") == 1; }));
  stream.Cancel();
  EXPECT_TRUE(Eventually([&] { return server_.Metric("attnd_queue_requests") == 0; }));
  device_->Release();
  EXPECT_TRUE(blocker->Wait().status.ok());
  EXPECT_TRUE(IsIdle());
}

TEST_F(StreamTest, GrpcsDeadlineEndsASilentStream) {
  RawStream stream(server_.channel(), kStreamMethod,
                   {.timeout = milliseconds(100), .declare = CallOptions::Declare::kNothing});
  ASSERT_TRUE(stream.Write(StreamMessages(MakeRequest(kMiddling), 8192)[0]));
  std::string message;
  EXPECT_FALSE(stream.Read(&message));
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(IsIdle());
}

// An answer that nobody reads stays with the server: it is the arena's, not gRPC's.
TEST_F(StreamTest, AnUnreadAnswerIsGivenBackWhenItsCallerGoes) {
  const v1::ComputeRequest request =
      MakeRequest({.q_heads = 8, .q_len = 8000, .kv_len = 3, .head_dim = 64});  // O: 16 MB
  RawStream stream(server_.channel(), kStreamMethod);
  for (const std::string& message : StreamMessages(request, 1 << 20)) {
    ASSERT_TRUE(stream.Write(message));
  }
  stream.WritesDone();
  std::string header;
  ASSERT_TRUE(stream.Read(&header));
  EXPECT_GT(server_.Metric("attnd_pool_used_bytes"), 16e6);
  EXPECT_EQ(server_->metrics().finished(), 0);
  stream.Cancel();
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(IsIdle());
  EXPECT_EQ(server_.Metric(R"(attnd_requests_finished_total{code="CANCELLED",stage="done"})"), 1);
}

class DefaultDeadlineTest : public StreamTest {
 protected:
  static server::ServerOptions Options() {
    server::ServerOptions options = TestOptions();
    options.default_deadline_ms = 300;
    return options;
  }
  DefaultDeadlineTest() : StreamTest(Options()) {}
};

TEST_F(DefaultDeadlineTest, EndsStreamsThatFallSilent) {
  const std::vector<std::string> messages = StreamMessages(MakeRequest(kMiddling), 8192);
  for (size_t sent = 0; sent < 3; ++sent) {
    RawStream stream(server_.channel(), kStreamMethod);
    for (size_t i = 0; i < sent; ++i) ASSERT_TRUE(stream.Write(messages[i]));
    std::string message;
    EXPECT_FALSE(stream.Read(&message));
    EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  EXPECT_TRUE(IsIdle());
}

class SmallTest : public StreamTest {
 protected:
  static server::ServerOptions Options() {
    server::ServerOptions options = TestOptions();
    options.max_unary_bytes = 2 << 20;
    options.receive_bytes = 2 << 20;
    options.arena_bytes = 24 << 20;
    return options;
  }
  SmallTest() : StreamTest(Options()) {}
};

// 9 MB each over a server that takes 2 MB at a time and has memory for one: they wait for each
// other, and for nothing in a ring, unary calls among them.
TEST_F(SmallTest, LargerThanEveryBudgetButTheArenasAndManyAtOnce) {
  const v1::ComputeRequest large =
      MakeRequest({.q_heads = 1, .q_len = 8, .kv_len = 18000, .head_dim = 64});
  const v1::ComputeRequest small = MakeRequest({.q_heads = 1, .kv_len = 3000, .head_dim = 64});
  const CallOptions declared{.declare = CallOptions::Declare::kText, .declared_text = "300000"};
  std::atomic<double> peak_bytes{0};
  std::atomic<bool> done{false};
  std::thread watch([&] {
    while (!done) peak_bytes = std::max(peak_bytes.load(), server_.Metric("attnd_pool_used_bytes"));
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      const auto channel = server_.NewChannel();
      for (int i = 0; i < 3; ++i) {
        if (t % 2 == 0) {
          EXPECT_TRUE(
              IsRight(ComputeStream(channel, StreamMessages(large, 250000), declared), large));
        } else {
          EXPECT_TRUE(IsRight(PendingCall(channel, small.SerializeAsString()).Wait(), small));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  watch.join();
  EXPECT_LE(peak_bytes, 24 << 20);
  EXPECT_TRUE(IsIdle());
}

// What is decoded on gRPC's own thread waits for its memory elsewhere.
TEST_F(SmallTest, AShortOneWaitsForMemoryInsteadOfFailing) {
  const v1::ComputeRequest large =
      MakeRequest({.q_heads = 1, .q_len = 8, .kv_len = 18000, .head_dim = 64});
  const v1::ComputeRequest small =
      MakeRequest({.q_heads = 1, .q_len = 8, .kv_len = 3500, .head_dim = 64});
  const std::vector<std::string> messages = StreamMessages(small, 250000);
  CallOptions options{.declare = CallOptions::Declare::kText, .declared_text = "300000"};
  std::vector<std::thread> callers;
  const auto begin = [&](const v1::ComputeRequest& request) {
    callers.emplace_back([&] {
      EXPECT_TRUE(IsRight(
          ComputeStream(server_.NewChannel(), StreamMessages(request, 250000), options), request));
    });
  };
  device_->Hold();
  begin(large);
  device_->WaitUntilHeld();
  // 9 MiB of 12 are taken, and each of these takes 1.75.
  begin(small);
  begin(small);
  EXPECT_TRUE(Eventually([&] { return server_.Metric("attnd_queue_requests") == 1; }));
  CallOptions hurried = options;
  hurried.timeout = milliseconds(100);
  EXPECT_EQ(Stream(messages, hurried).code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(server_.Metric("attnd_queue_requests"), 1);
  EXPECT_LT(server_.Metric("attnd_pool_used_bytes"), 12 << 20);
  device_->Release();
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(IsIdle());
}

TEST(StreamShutdown, S40EndsWithinTheGracePeriodWithAnOpenStream) {
  TestServer server;
  RawStream stream(server.channel(), kStreamMethod);
  ASSERT_TRUE(stream.Write(StreamMessages(MakeRequest(kMiddling), 8192)[0]));
  ASSERT_TRUE(Eventually([&] { return server.Metric("attnd_pool_used_bytes") > 0; }));
  server.Destroy();
  EXPECT_FALSE(stream.Finish().ok());
}

}  // namespace
}  // namespace attnd::testing
