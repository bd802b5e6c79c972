// The C++ client and a server on one host: which way a call takes, and that the answer is the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <thread>
#include <vector>

#include "client/client.h"
#include "tests/service/harness.h"

namespace attnd::testing {
namespace {

using ::testing::HasSubstr;

// Q, K, V in ordinary memory; [1, 2, rows, 32], two keys each of two heads.
struct Problem {
  explicit Problem(int64_t rows, Transport transport = Transport::kAuto)
      : values(
            MakeRequest({.q_heads = 2, .kv_heads = 2, .q_len = rows, .kv_len = 2, .head_dim = 32},
                        static_cast<uint64_t>(rows))) {
    request.q = {DType::kFloat32, {1, 2, rows, 32}, values.q().data()};
    request.k = {DType::kFloat32, {1, 2, 2, 32}, values.k().data()};
    request.v = {DType::kFloat32, {1, 2, 2, 32}, values.v().data()};
    request.want_lse = true;
    request.transport = transport;
  }
  Problem(const Problem&) = delete;

  const v1::ComputeRequest values;
  AttentionRequest request;
};

// Q of half a megabyte and more is worth a region.
constexpr int64_t kLargeRows = 2048;
constexpr int64_t kSmallRows = 16;

class ClientRegionTest : public ::testing::Test {
 protected:
  ClientRegionTest()
      : device_(new GatedDevice), server_(Options(), std::unique_ptr<server::Device>(device_)) {}

  server::ServerOptions Options() const {
    server::ServerOptions options = TestOptions();
    options.local_socket = folder_ / "side.sock";
    options.max_region_bytes = 64 << 20;
    return options;
  }

  std::unique_ptr<Client> NewClient(ClientOptions options = {}) const {
    if (options.local_socket.empty()) options.local_socket = folder_ / "side.sock";
    auto client = Client::Connect(server_.address(), options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }

  // The bits of a unary call.
  void ExpectSame(const AttentionResult& result, const AttentionRequest& request) const {
    AttentionRequest unary = request;
    unary.transport = Transport::kUnary;
    const auto expected = NewClient()->Attention(unary);
    ASSERT_TRUE(expected.ok()) << expected.status();
    EXPECT_EQ(expected->transport, Transport::kUnary);
    EXPECT_EQ(result.o.bytes, expected->o.bytes);
    EXPECT_EQ(result.o.shape, expected->o.shape);
    ASSERT_TRUE(result.lse.has_value());
    EXPECT_EQ(result.lse->bytes, expected->lse->bytes);
    EXPECT_EQ(result.lse->shape, expected->lse->shape);
  }

  ::testing::AssertionResult HoldsRegions(int64_t regions) {
    return Eventually([&] {
      return server_.Metric("attnd_regions") == static_cast<double>(regions) &&
             server_.Metric("attnd_region_leases") == 0;
    });
  }

  const TempFolder folder_;
  GatedDevice* const device_;  // the server's
  TestServer server_;
};

TEST_F(ClientRegionTest, AutoTakesARegionForLargeTensorsAndAMessageForSmallOnes) {
  const auto client = NewClient();
  for (int i = 0; i < 3; ++i) {
    for (const auto& [rows, transport] :
         {std::pair(kSmallRows, Transport::kUnary), std::pair(kLargeRows, Transport::kRegion)}) {
      const Problem problem(rows);
      const auto result = client->Attention(problem.request);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->transport, transport);
      ExpectSame(*result, problem.request);
    }
  }
  EXPECT_TRUE(HoldsRegions(1));
  // gRPC may hold the last answer a moment longer than its caller waits for it.
  EXPECT_TRUE(Eventually([&] { return server_.Metric("attnd_pool_used_bytes") == 0; }));
}

TEST_F(ClientRegionTest, RegionTakesAnySize) {
  const auto client = NewClient();
  for (const int64_t rows : {int64_t{0}, int64_t{1}, kSmallRows, kLargeRows}) {
    const Problem problem(rows, Transport::kRegion);
    const auto result = client->Attention(problem.request);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->transport, Transport::kRegion);
    ExpectSame(*result, problem.request);
  }
}

TEST_F(ClientRegionTest, TensorsInTheCallersOwnRegionAreUsedInPlace) {
  const auto client = NewClient();
  const auto region = client->NewRegion(4 << 20, absl::Seconds(10));
  ASSERT_TRUE(region.ok()) << region.status();
  const Problem problem(kSmallRows);
  AttentionRequest request = problem.request;
  const auto put = [&](const TensorView& view) {
    auto tensor = NewTensor(**region, view.dtype, view.shape);
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    std::memcpy(tensor->data, view.data, static_cast<size_t>(view.size_bytes()));
    return *std::move(tensor);
  };
  request.q = put(problem.request.q).input();
  request.k = put(problem.request.k).input();
  request.v = put(problem.request.v).input();
  const RegionTensor o = put(problem.request.q);
  const auto lse = NewTensor(**region, DType::kFloat32, {1, 2, kSmallRows});
  ASSERT_TRUE(lse.ok());
  request.o_place = o.output();
  request.lse_place = lse->output();
  auto result = client->Attention(request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->transport, Transport::kRegion);
  EXPECT_TRUE(result->o.bytes.empty());
  const auto* const o_bytes = static_cast<const unsigned char*>(o.data);
  const auto* const lse_bytes = static_cast<const unsigned char*>(lse->data);
  result->o.bytes.assign(o_bytes, o_bytes + o.input().size_bytes());
  result->lse->bytes.assign(lse_bytes, lse_bytes + lse->input().size_bytes());
  ExpectSame(*result, problem.request);
  // Q again, K and V from a message: each by itself.
  request.k = problem.request.k;
  request.v = problem.request.v;
  EXPECT_TRUE(client->Attention(request).ok());
  EXPECT_EQ(server_.Metric("attnd_regions"), 1);
}

TEST_F(ClientRegionTest, WhatDoesNotLieInItsRegionIsRefusedBeforeTheCall) {
  const auto client = NewClient();
  const auto region = client->NewRegion(1 << 20, absl::Seconds(10));
  ASSERT_TRUE(region.ok()) << region.status();
  const auto expect = [&](const AttentionRequest& request, const std::string& text) {
    const absl::Status status = client->Attention(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  const Problem problem(kSmallRows);
  AttentionRequest request = problem.request;
  request.q.region = region->get();
  expect(request, "q.data does not lie in q.region");
  request = problem.request;
  request.o_place = OutputView{nullptr, nullptr};
  expect(request, "o_place.data is null, and o_place.region is null");
  request.o_place = OutputView{(*region)->bytes().data(), region->get()};
  request.transport = Transport::kUnary;
  expect(request, "transport is unary, must be region or auto");
  request = problem.request;
  request.k.strides_elems = {1};
  expect(request, "k.region is null");
  // What is left to the server.
  request = problem.request;
  request.o_place = OutputView{(*region)->bytes().data() + (1 << 20), region->get()};
  expect(request, "do not lie in a region of 1048576 bytes");
  EXPECT_FALSE(NewTensor(**region, DType::kFloat32, {1 << 20}).ok());
  EXPECT_FALSE(NewTensor(**region, DType::kFloat32, {-1}).ok());
  EXPECT_TRUE(NewTensor(**region, DType::kFloat32, {1 << 18}).ok());
}

// A port that is forwarded from another host: the socket here is another server's.
TEST_F(ClientRegionTest, AnotherInstancesSocketIsNotTaken) {
  server::ServerOptions options = TestOptions();
  options.local_socket = folder_ / "other.sock";
  const TestServer other(options);
  ClientOptions client_options;
  client_options.local_socket = options.local_socket;
  const auto client = NewClient(client_options);
  const Problem automatic(kLargeRows);
  const auto result = client->Attention(automatic.request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->transport, Transport::kUnary);
  const Problem problem(kLargeRows, Transport::kRegion);
  const absl::Status status = client->Attention(problem.request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("calls go to instance"));
  EXPECT_EQ(other.Metric("attnd_regions"), 0);
}

TEST_F(ClientRegionTest, WithoutASocketOrRoomAutoGoesAnotherWay) {
  ClientOptions none;
  none.local_socket = kNoLocalSocket;
  ClientOptions nobody;
  nobody.local_socket = folder_ / "nobody.sock";
  ClientOptions small;
  small.max_region_bytes = 1 << 20;
  for (const ClientOptions& options : {none, nobody, small}) {
    const auto client = NewClient(options);
    const Problem automatic(kLargeRows);
    const auto result = client->Attention(automatic.request);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->transport, Transport::kUnary);
    EXPECT_FALSE(client->Attention(Problem(kLargeRows, Transport::kRegion).request).ok());
  }
  EXPECT_EQ(server_.Metric("attnd_regions"), 0);
}

TEST_F(ClientRegionTest, ManyCallersAtOnceShareAFewRegions) {
  const auto client = NewClient();
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const Problem problem(kLargeRows + 64 * t);
        const auto result = client->Attention(problem.request);
        ASSERT_TRUE(result.ok()) << result.status();
        ExpectSame(*result, problem.request);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(server_.Metric("attnd_regions"), 6);
  EXPECT_TRUE(IsRight(server_.Compute(MakeRequest({})), MakeRequest({})));
}

TEST_F(ClientRegionTest, AsynchronousCallsTakeThemToo) {
  const auto client = NewClient();
  const Problem problem(kLargeRows);
  std::vector<std::promise<absl::StatusOr<AttentionResult>>> ends(16);
  for (auto& end : ends) {
    client->AttentionAsync(problem.request, [&end](absl::StatusOr<AttentionResult> result) {
      end.set_value(std::move(result));
    });
  }
  for (auto& end : ends) {
    const absl::StatusOr<AttentionResult> result = end.get_future().get();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->transport, Transport::kRegion);
    ExpectSame(*result, problem.request);
  }
}

// The server may still be at it: the region must not serve the next call.
TEST_F(ClientRegionTest, ACallThatFailedTakesItsRegionAlong) {
  const auto client = NewClient();
  const Problem problem(kLargeRows);
  device_->Hold();
  Problem late(kLargeRows, Transport::kRegion);
  late.request.timeout = absl::Milliseconds(200);
  EXPECT_EQ(client->Attention(late.request).status().code(), absl::StatusCode::kDeadlineExceeded);
  std::promise<absl::Status> end;
  const auto call = client->AttentionAsync(
      problem.request,
      [&end](absl::StatusOr<AttentionResult> result) { end.set_value(result.status()); });
  call->Cancel();
  EXPECT_EQ(end.get_future().get().code(), absl::StatusCode::kCancelled);
  device_->Release();
  const auto result = client->Attention(problem.request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->transport, Transport::kRegion);
  ExpectSame(*result, problem.request);
  EXPECT_TRUE(HoldsRegions(1));
}

// To make another costs the server more than the refusal, when it has least time to spare.
TEST_F(ClientRegionTest, ARefusedCallLeavesItsRegionToTheNext) {
  const auto client = NewClient();
  Problem refused(kLargeRows, Transport::kRegion);
  refused.request.alibi_slopes = {1, 2, 3};
  for (int i = 0; i < 3; ++i) {
    const absl::Status status = client->Attention(refused.request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(server_.Metric("attnd_regions"), 1) << "of call " << i << ", kept";
    EXPECT_EQ(server_.Metric("attnd_region_leases"), 0);
  }
  const Problem problem(kLargeRows);
  const auto result = client->Attention(problem.request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->transport, Transport::kRegion);
  ExpectSame(*result, problem.request);
  EXPECT_TRUE(HoldsRegions(1));
}

TEST_F(ClientRegionTest, S40AServerEndsWithRegionsOpenAndTheyAreTold) {
  const auto client = NewClient();
  const auto region = client->NewRegion(1 << 20, absl::Seconds(10));
  ASSERT_TRUE(region.ok()) << region.status();
  ASSERT_TRUE(client->Attention(Problem(kLargeRows).request).ok());
  EXPECT_TRUE((*region)->connected());
  server_.Destroy();
  EXPECT_FALSE((*region)->connected());
  Problem problem(kLargeRows, Transport::kRegion);
  problem.request.timeout = absl::Seconds(1);
  EXPECT_FALSE(client->Attention(problem.request).ok());
}

TEST(ClientRegionRestart, AServerStartedAnewIsFoundAgain) {
  const TempFolder folder;
  server::ServerOptions options = TestOptions();
  options.listen = "unix:" + folder / "grpc.sock";
  options.local_socket = folder / "side.sock";
  ClientOptions client_options;
  client_options.local_socket = options.local_socket;
  const auto client = *Client::Connect(options.listen, client_options);
  const Problem problem(kLargeRows);
  std::vector<unsigned char> first;
  for (int start = 0; start < 3; ++start) {
    const TestServer server(options);
    for (int i = 0; i < 2; ++i) {
      const auto result = client->Attention(problem.request);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->transport, Transport::kRegion) << start;
      if (first.empty()) first = result->o.bytes;
      EXPECT_EQ(result->o.bytes, first);
    }
  }
}

}  // namespace
}  // namespace attnd::testing
