// Callers that go away, and time that runs out, at every stage of a call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/service/harness.h"

namespace attnd::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::Not;

v1::ComputeRequest Named(const std::string& id) {
  v1::ComputeRequest request = MakeRequest({});
  request.mutable_header()->set_request_id(id);
  return request;
}

// Everything that was received has ended, and holds nothing.
::testing::AssertionResult IsIdle(TestServer& server) {
  return Eventually([&] {
    return server->metrics().received() == server->metrics().finished() &&
           server.Metric("attnd_receive_used_bytes") == 0 &&
           server.Metric("attnd_receive_waiting_requests") == 0 &&
           server.Metric("attnd_queue_requests") == 0 && server.Metric("attnd_queue_bytes") == 0 &&
           server.Metric("attnd_pool_used_bytes") == 0;
  });
}

class DeadlinesTest : public ::testing::Test {
 protected:
  explicit DeadlinesTest(const server::ServerOptions& options = TestOptions())
      : device_(new GatedDevice), server_(options, std::unique_ptr<server::Device>(device_)) {}

  // A call that stands at the gate, so that those behind it stay in the queue.
  std::unique_ptr<PendingCall> Block() {
    device_->Hold();
    auto blocker = server_.Begin(Named("blocker"));
    device_->WaitUntilHeld();
    return blocker;
  }

  bool Queued(int count) const { return server_.Metric("attnd_queue_requests") == count; }

  GatedDevice* const device_;  // the server's
  TestServer server_;
};

TEST_F(DeadlinesTest, S27ADeadlineThatPassesInTheQueueIsNeverRun) {
  const auto blocker = Block();
  EXPECT_EQ(server_.Compute(Named("late"), {.timeout = milliseconds(50)}).code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  ASSERT_TRUE(Eventually([&] { return Queued(0); }));
  device_->Release();
  EXPECT_TRUE(blocker->Wait().status.ok());
  EXPECT_TRUE(server_.Compute(Named("after")).status.ok());
  EXPECT_THAT(device_->ran(), Not(Contains("late")));
  EXPECT_TRUE(IsIdle(server_));
}

TEST_F(DeadlinesTest, TheRequestsOwnTimeoutCountsWithoutOneOfGrpc) {
  const auto blocker = Block();
  v1::ComputeRequest request = Named("late");
  request.mutable_header()->set_timeout_us(50'000);
  const Outcome outcome = server_.Compute(request);
  EXPECT_EQ(outcome.code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(outcome.Trailer("attnd-version"), ATTND_VERSION);
  device_->Release();
  EXPECT_TRUE(blocker->Wait().status.ok());
  EXPECT_THAT(device_->ran(), Not(Contains("late")));
}

TEST_F(DeadlinesTest, ACancelledCallLeavesTheQueueAtOnce) {
  const auto blocker = Block();
  const auto cancelled = server_.Begin(Named("cancelled"));
  ASSERT_TRUE(Eventually([&] { return Queued(1); }));
  cancelled->Cancel();
  EXPECT_EQ(cancelled->Wait().code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return Queued(0); }));
  device_->Release();
  EXPECT_TRUE(blocker->Wait().status.ok());
  EXPECT_THAT(device_->ran(), Not(Contains("cancelled")));
  EXPECT_TRUE(IsIdle(server_));
  EXPECT_EQ(server_.Metric(R"(attnd_requests_finished_total{code="CANCELLED",stage="queue"})"), 1);
}

TEST_F(DeadlinesTest, ACallCancelledWhileItRunsEndsAtItsNextStage) {
  const auto blocker = Block();
  blocker->Cancel();
  EXPECT_EQ(blocker->Wait().code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(server_->metrics().finished(), 0);
  // Its neighbour behind it is not touched. (The cancellation has reached the server by then, or
  // the answer goes nowhere: both are right.)
  const auto behind = server_.Begin(Named("behind"));
  ASSERT_TRUE(Eventually([&] { return Queued(1); }));
  device_->Release();
  EXPECT_TRUE(behind->Wait().status.ok());
  EXPECT_TRUE(IsIdle(server_));
}

TEST_F(DeadlinesTest, S22StormOfOneMillisecondDeadlinesAndCancels) {
  constexpr int kThreads = 16;
  constexpr int kCalls = 60;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const v1::ComputeRequest request =
          MakeRequest({.q_len = 1 + t * 8, .kv_len = 64, .head_dim = 64});
      for (int i = 0; i < kCalls; ++i) {
        if ((t + i) % 2 == 0) {
          const Outcome outcome = server_.Compute(request, {.timeout = milliseconds(1)});
          EXPECT_TRUE(outcome.status.ok() || outcome.code() == grpc::StatusCode::DEADLINE_EXCEEDED)
              << outcome.code() << outcome.status.error_message();
        } else {
          const auto call = server_.Begin(request);
          for (int spin = 0; spin < i * 40; ++spin) std::this_thread::yield();
          call->Cancel();
          const Outcome outcome = call->Wait();
          EXPECT_TRUE(outcome.status.ok() || outcome.code() == grpc::StatusCode::CANCELLED)
              << outcome.code() << outcome.status.error_message();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const v1::ComputeRequest good = Named("good");
  EXPECT_TRUE(IsRight(server_.Compute(good), good));
  EXPECT_TRUE(IsIdle(server_));
}

class DefaultDeadlineTest : public DeadlinesTest {
 protected:
  static server::ServerOptions Options() {
    server::ServerOptions options = TestOptions();
    options.default_deadline_ms = 1000;
    options.receive_bytes = options.max_unary_bytes;  // one undeclared call at a time
    return options;
  }
  DefaultDeadlineTest() : DeadlinesTest(Options()) {}
};

TEST_F(DefaultDeadlineTest, HoldsInTheQueueForThoseThatBringNone) {
  device_->Hold();
  const auto running = server_.Begin(Named("running"), {.timeout = kPatience});
  device_->WaitUntilHeld();
  const auto queued = server_.Begin(Named("queued"));
  EXPECT_EQ(queued->Wait().code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  device_->Release();
  // Later than its own deadline, though gRPC's is far away.
  EXPECT_EQ(running->Wait().code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(IsIdle(server_));
}

TEST_F(DefaultDeadlineTest, EndsCallsThatSendNothingAndThoseThatWaitForTheirMemory) {
  RawStream silent(server_.channel(), kComputeMethod);
  ASSERT_TRUE(Eventually([&] { return server_.Metric("attnd_receive_used_bytes") > 0; }));
  RawStream waiting(server_.NewChannel(), kComputeMethod);
  std::string message;
  EXPECT_FALSE(waiting.Read(&message));
  EXPECT_FALSE(silent.Read(&message));
  EXPECT_EQ(silent.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(waiting.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(IsIdle(server_));
}

class ReceiveBudgetTest : public DeadlinesTest {
 protected:
  static server::ServerOptions Options() {
    server::ServerOptions options = TestOptions();
    options.receive_bytes = options.max_unary_bytes;
    return options;
  }
  ReceiveBudgetTest() : DeadlinesTest(Options()) {}
};

TEST_F(ReceiveBudgetTest, CallsWaitForTheirPermitAndMayBeCancelledMeanwhile) {
  RawStream silent(server_.channel(), kComputeMethod);
  ASSERT_TRUE(Eventually([&] { return server_.Metric("attnd_receive_used_bytes") > 0; }));
  const auto gone = server_.Begin(Named("gone"));
  const auto patient = server_.Begin(Named("patient"));
  ASSERT_TRUE(Eventually([&] { return server_.Metric("attnd_receive_waiting_requests") == 2; }));
  gone->Cancel();
  EXPECT_EQ(gone->Wait().code(), grpc::StatusCode::CANCELLED);
  ASSERT_TRUE(Eventually([&] { return server_.Metric("attnd_receive_waiting_requests") == 1; }));
  EXPECT_FALSE(patient->IsDone());
  silent.Cancel();
  EXPECT_TRUE(patient->Wait().status.ok());
  EXPECT_TRUE(IsIdle(server_));
}

class PoolRoomTest : public DeadlinesTest {
 protected:
  static server::ServerOptions Options() {
    server::ServerOptions options = TestOptions();
    options.max_unary_bytes = 4 << 20;
    options.arena_bytes = 12 << 20;
    return options;
  }
  PoolRoomTest() : DeadlinesTest(Options()) {}
};

TEST_F(PoolRoomTest, DecodedRequestsWaitForMemoryInsteadOfFailing) {
  // 3.75 MiB each, of 6 MiB: the second has to wait for the first.
  const Shape shape{
      .batch = 80, .q_heads = 1, .kv_heads = 1, .q_len = 64, .kv_len = 64, .head_dim = 64};
  const v1::ComputeRequest request = MakeRequest(shape);
  device_->Hold();
  const auto first = server_.Begin(request);
  device_->WaitUntilHeld();
  const auto second = server_.Begin(request);
  const auto third = server_.Begin(request);
  const auto cancelled = server_.Begin(request);
  cancelled->Cancel();
  EXPECT_EQ(cancelled->Wait().code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(server_.Compute(request, {.timeout = milliseconds(100)}).code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_FALSE(second->IsDone());
  device_->Release();
  EXPECT_TRUE(IsRight(first->Wait(), request));
  EXPECT_TRUE(IsRight(second->Wait(), request));
  EXPECT_TRUE(IsRight(third->Wait(), request));
  EXPECT_TRUE(IsIdle(server_));
}

}  // namespace
}  // namespace attnd::testing
