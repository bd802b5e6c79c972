// Many callers at once, with everything that callers do.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/service/harness.h"

namespace attnd::testing {
namespace {

constexpr int kThreads = 64;
constexpr int kCallsPerThread = 20;

// What one caller does, in turn; the good calls count into `good`.
void CallOnce(const TestServer& server, int kind, const v1::ComputeRequest& request,
              const std::string& bits, std::atomic<int64_t>& good) {
  switch (kind) {
    case 0: {
      const Outcome outcome = server.ComputeBytes("\x0a");
      EXPECT_EQ(outcome.code(), grpc::StatusCode::INVALID_ARGUMENT);
      return;
    }
    case 1: {
      const auto call = server.Begin(request);
      call->Cancel();
      const Outcome outcome = call->Wait();
      EXPECT_TRUE(outcome.status.ok() || outcome.code() == grpc::StatusCode::CANCELLED);
      return;
    }
    case 2: {
      const Outcome outcome = server.Compute(request, {.timeout = std::chrono::milliseconds(2)});
      EXPECT_TRUE(outcome.status.ok() || outcome.code() == grpc::StatusCode::DEADLINE_EXCEEDED);
      return;
    }
    default: {
      const Outcome outcome = server.Compute(
          request,
          {.declare = kind == 3 ? CallOptions::Declare::kNothing : CallOptions::Declare::kSize});
      EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
      EXPECT_EQ(outcome.response.o(), bits);
      ++good;
    }
  }
}

TEST(LoadTest, SixtyFourThreadsOfEverything) {
  TestServer server;
  const Shape shapes[] = {{},
                          {.q_len = 1, .kv_len = 200},
                          {2, 4, 2, 65, 65, 64, v1::DATA_TYPE_FLOAT16},
                          {1, 8, 8, 100, 300, 128, v1::DATA_TYPE_BFLOAT16}};
  std::vector<v1::ComputeRequest> requests;
  std::vector<std::string> bits;
  for (const Shape& shape : shapes) {
    requests.push_back(MakeRequest(shape, 5));
    const Outcome outcome = server.Compute(requests.back());
    ASSERT_TRUE(IsRight(outcome, requests.back()));
    bits.push_back(outcome.response.o());
  }
  std::atomic<int64_t> good{static_cast<int64_t>(requests.size())};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kCallsPerThread; ++i) {
        const size_t which = static_cast<size_t>(t + i) % requests.size();
        CallOnce(server, (t * 7 + i) % 10, requests[which], bits[which], good);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(Eventually([&] {
    return server->metrics().received() == server->metrics().finished() &&
           server.Metric("attnd_pool_used_bytes") == 0;
  }));
  EXPECT_GE(server.Metric(R"(attnd_requests_finished_total{code="OK",stage="done"})"),
            static_cast<double>(good));
  EXPECT_EQ(server.Metric("attnd_receive_used_bytes"), 0);
}

}  // namespace
}  // namespace attnd::testing
