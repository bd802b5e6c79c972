// Calls against a fake server: answers, errors, retries, the two connections.
#include "client/client.h"

#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/sync.h"
#include "tests/client/fake_server.h"

namespace attnd {
namespace {

using ::attnd::testing::Echo;
using ::attnd::testing::FakeServer;
using ::testing::HasSubstr;
using ::testing::Lt;

// Requests over one block of memory.
class Problem {
 public:
  explicit Problem(int64_t rows) : data_(rows * 64) {
    for (size_t i = 0; i < data_.size(); ++i) data_[i] = static_cast<float>(i % 8191);
    request_.q = {DType::kFloat32, {1, 1, rows, 64}, data_.data()};
    request_.k = request_.v = {DType::kFloat32, {1, 1, 1, 64}, data_.data()};
  }
  AttentionRequest& request() { return request_; }
  bool IsEcho(const Tensor& o) const {
    return o.bytes.size() == data_.size() * 4 &&
           std::equal(o.bytes.begin(), o.bytes.end(),
                      reinterpret_cast<const unsigned char*>(data_.data()));
  }

 private:
  std::vector<float> data_;
  AttentionRequest request_;
};

std::unique_ptr<Client> Connect(const std::string& address, const ClientOptions& options = {}) {
  auto client = Client::Connect(address, options);
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

ClientOptions Once() {
  ClientOptions options;
  options.max_tries = 1;
  return options;
}

TEST(Client, ReturnsTheAnswerAndItsAccount) {
  FakeServer server;
  const auto client = Connect(server.address());
  Problem problem(3);
  problem.request().want_lse = true;
  const auto result = client->Attention(problem.request());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(problem.IsEcho(result->o));
  ASSERT_TRUE(result->lse.has_value());
  EXPECT_EQ(result->lse->bytes.size(), 12u);
  EXPECT_EQ(result->backend, "fake");
  EXPECT_EQ(result->timing.run_us, 7);
  EXPECT_EQ(result->tries, 1);
  EXPECT_GT(result->sent_bytes, 3 * 64 * 4);
  EXPECT_GT(result->received_bytes, 3 * 64 * 4);
}

TEST(Client, DeclaresTheMessagesSize) {
  std::atomic<int64_t> declared{0}, actual{0};
  FakeServer server([&](grpc::ServerContext* context, const v1::ComputeRequest& request,
                        v1::ComputeResponse* response) {
    const auto found = context->client_metadata().find("attnd-request-bytes");
    if (found != context->client_metadata().end()) {
      declared = std::stoll(std::string(found->second.data(), found->second.size()));
    }
    actual = static_cast<int64_t>(request.ByteSizeLong());
    return Echo(request, response);
  });
  const auto client = Connect(server.address());
  Problem problem(100);
  ASSERT_TRUE(client->Attention(problem.request()).ok());
  EXPECT_EQ(declared, actual);
}

TEST(Client, BringsTheMetadataThatItWasGiven) {
  std::atomic<bool> came{false};
  FakeServer server([&](grpc::ServerContext* context, const v1::ComputeRequest& request,
                        v1::ComputeResponse* response) {
    const auto found = context->client_metadata().find("attnd-tenant");
    came = found != context->client_metadata().end() && found->second == "team a";
    return Echo(request, response);
  });
  ClientOptions options;
  options.metadata = {{"attnd-tenant", "team a"}};
  Problem problem(1);
  ASSERT_TRUE(Connect(server.address(), options)->Attention(problem.request()).ok());
  EXPECT_TRUE(came);
  for (const std::pair<std::string, std::string>& bad :
       std::vector<std::pair<std::string, std::string>>{{"", "x"},
                                                        {"Tenant", "x"},
                                                        {"grpc-timeout", "1S"},
                                                        {"attnd-request-bytes", "1"},
                                                        {"tenant-bin", "x"},
                                                        {"tenant", "line\nline"}}) {
    options.metadata = {bad};
    EXPECT_EQ(Client::Connect(server.address(), options).status().code(),
              absl::StatusCode::kInvalidArgument)
        << bad.first;
  }
}

TEST(Client, ErrorsKeepCodeAndMessage) {
  FakeServer server(
      [](grpc::ServerContext* context, const v1::ComputeRequest&, v1::ComputeResponse*) {
        context->AddTrailingMetadata("attnd-version", "1");
        return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "q.shape[0] is 3, k.shape[0] is 4");
      });
  const auto client = Connect(server.address());
  const auto result = client->Attention(Problem(1).request());
  EXPECT_EQ(result.status(), absl::InvalidArgumentError("q.shape[0] is 3, k.shape[0] is 4"));
  EXPECT_EQ(server.calls(), 1);
}

// Case S46: no limit of either end's gRPC stands in the way.
TEST(Client, S46_LargeMessagesWorkOutOfTheBox) {
  FakeServer server;
  const auto client = Connect(server.address());
  for (int64_t megabytes : {18, 96}) {
    Problem problem(megabytes << 12);
    const auto result = client->Attention(problem.request());
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(problem.IsEcho(result->o)) << megabytes;
  }
}

// Case S8: no state of one call is left for the next.
TEST(Client, S8_SizesUpAndDown) {
  FakeServer server;
  const auto client = Connect(server.address());
  for (int64_t rows : {10, 2, 10, 50000, 1}) {
    Problem problem(rows);
    const auto result = client->Attention(problem.request());
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(problem.IsEcho(result->o)) << rows;
  }
}

TEST(Client, SmallAndBulkCallsHaveTheirOwnConnections) {
  Mutex mutex;
  std::set<std::string> small, bulk;
  FakeServer server([&](grpc::ServerContext* context, const v1::ComputeRequest& request,
                        v1::ComputeResponse* response) {
    MutexLock lock(mutex);
    (request.ByteSizeLong() < (64 << 10) ? small : bulk).insert(context->peer());
    return Echo(request, response);
  });
  const auto client = Connect(server.address());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client->Attention(Problem(1).request()).ok());
    ASSERT_TRUE(client->Attention(Problem(1000).request()).ok());
  }
  MutexLock lock(mutex);
  EXPECT_EQ(small.size(), 1u);
  EXPECT_EQ(bulk.size(), 1u);
  EXPECT_NE(*small.begin(), *bulk.begin());
}

// Fails the first `failures` calls with `code` and trailers.
FakeServer::Handler FailFirst(std::shared_ptr<std::atomic<int>> failures, grpc::StatusCode code,
                              std::map<std::string, std::string> trailers = {}) {
  return [=](grpc::ServerContext* context, const v1::ComputeRequest& request,
             v1::ComputeResponse* response) {
    if (failures->fetch_sub(1) <= 0) return Echo(request, response);
    for (const auto& [key, value] : trailers) context->AddTrailingMetadata(key, value);
    return grpc::Status(code, "not now");
  };
}

std::shared_ptr<std::atomic<int>> Failures(int count) {
  return std::make_shared<std::atomic<int>>(count);
}

TEST(Retry, UnavailableIsTriedAgain) {
  FakeServer server(
      FailFirst(Failures(2), grpc::StatusCode::UNAVAILABLE, {{"attnd-version", "1"}}));
  const auto client = Connect(server.address());
  Problem problem(2000);
  const auto result = client->Attention(problem.request());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(problem.IsEcho(result->o));
  EXPECT_EQ(result->tries, 3);
}

TEST(Retry, AtMostFourTries) {
  FakeServer server(FailFirst(Failures(100), grpc::StatusCode::UNAVAILABLE));
  const auto client = Connect(server.address());
  const auto result = client->Attention(Problem(1).request());
  EXPECT_EQ(result.status(), absl::UnavailableError("not now"));
  EXPECT_EQ(server.calls(), 4);
}

TEST(Retry, InternalOnlyWithoutTheVersionTrailer) {
  FakeServer lost(FailFirst(Failures(1), grpc::StatusCode::INTERNAL));
  EXPECT_TRUE(Connect(lost.address())->Attention(Problem(1).request()).ok());
  FakeServer faulty(FailFirst(Failures(1), grpc::StatusCode::INTERNAL, {{"attnd-version", "1"}}));
  EXPECT_EQ(Connect(faulty.address())->Attention(Problem(1).request()).status().code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(faulty.calls(), 1);
}

TEST(Retry, PushbackIsHonoured) {
  FakeServer server(FailFirst(Failures(1), grpc::StatusCode::RESOURCE_EXHAUSTED,
                              {{"attnd-version", "1"}, {"grpc-retry-pushback-ms", "150"}}));
  const auto client = Connect(server.address());
  const absl::Time start = absl::Now();
  ASSERT_TRUE(client->Attention(Problem(1).request()).ok());
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(149));
}

TEST(Retry, NoOrNegativePushbackMeansNever) {
  FakeServer silent(FailFirst(Failures(1), grpc::StatusCode::RESOURCE_EXHAUSTED));
  EXPECT_EQ(Connect(silent.address())->Attention(Problem(1).request()).status().code(),
            absl::StatusCode::kResourceExhausted);
  FakeServer never(FailFirst(Failures(1), grpc::StatusCode::RESOURCE_EXHAUSTED,
                             {{"grpc-retry-pushback-ms", "-1"}}));
  EXPECT_EQ(Connect(never.address())->Attention(Problem(1).request()).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(silent.calls() + never.calls(), 2);
}

TEST(Retry, NoWaitPassesTheDeadline) {
  FakeServer server(FailFirst(Failures(100), grpc::StatusCode::UNAVAILABLE,
                              {{"grpc-retry-pushback-ms", "59000"}}));
  const auto client = Connect(server.address());
  Problem problem(1);
  problem.request().timeout = absl::Seconds(50);
  const absl::Time start = absl::Now();
  EXPECT_EQ(client->Attention(problem.request()).status(), absl::UnavailableError("not now"));
  EXPECT_THAT(absl::Now() - start, Lt(absl::Seconds(30)));  // at once, not after either wait
  EXPECT_EQ(server.calls(), 1);
}

TEST(Retry, TheBudgetKeepsAFailingServerFromAFlood) {
  FakeServer server(FailFirst(Failures(1 << 20), grpc::StatusCode::UNAVAILABLE,
                              {{"grpc-retry-pushback-ms", "0"}}));
  const auto client = Connect(server.address());
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(client->Attention(Problem(1).request()).ok());
  EXPECT_EQ(server.calls(), 100 + 10 + 10);  // calls, reserve, a tenth of the calls
}

TEST(Client, NobodyThereIsUnavailable) {
  FakeServer server;
  const std::string address = server.address();
  server.Stop();
  const auto result = Connect(address, Once())->Attention(Problem(1).request());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(result.status().message(), HasSubstr("failed to connect"));
}

TEST(Client, RefusesAddressesThatAreNone) {
  for (const char* bad : {"", "localhost", ":7070", "host:", "host:0", "host:70000", "host:x",
                          "unix:", "::1:80", "http://host:80"}) {
    const auto client = Client::Connect(bad);
    EXPECT_EQ(client.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(client.status().message(), HasSubstr("neither host:port nor unix:/path")) << bad;
  }
  for (const char* good : {"host:80", "[::1]:80", "unix:/tmp/socket", "10.0.0.1:7070"}) {
    EXPECT_TRUE(Client::Connect(good).ok()) << good;
  }
}

TEST(Client, BadRequestsMakeNoCall) {
  FakeServer server;
  const auto client = Connect(server.address());
  Problem problem(1);
  problem.request().q.data = nullptr;
  EXPECT_EQ(client->Attention(problem.request()).status().code(),
            absl::StatusCode::kInvalidArgument);
  std::promise<absl::Status> ended;
  client
      ->AttentionAsync(
          problem.request(),
          [&](absl::StatusOr<AttentionResult> result) { ended.set_value(result.status()); })
      ->Cancel();
  EXPECT_EQ(ended.get_future().get().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(server.calls(), 0);
}

TEST(Client, AnAnswerToSomethingElseIsInternalAndNotRetried) {
  FakeServer server(
      [](grpc::ServerContext*, const v1::ComputeRequest& request, v1::ComputeResponse* response) {
        const grpc::Status status = Echo(request, response);
        response->set_o("short");
        return status;
      });
  const auto result = Connect(server.address())->Attention(Problem(1).request());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(result.status().message(), HasSubstr("o has 5 bytes, its shape means 256"));
  EXPECT_EQ(server.calls(), 1);
}

TEST(Client, HealthAndInfo) {
  FakeServer server;
  const auto client = Connect(server.address());
  EXPECT_TRUE(client->CheckHealth(absl::Seconds(60)).ok());
  const auto info = client->GetServerInfo(absl::Seconds(60));
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->version, "1.2.3");
  EXPECT_EQ(info->max_head_dim, 256);
  ASSERT_EQ(info->devices.size(), 1u);
  EXPECT_THAT(info->devices[0].backends, ::testing::ElementsAre("fake"));
  server.SetServing(false);
  EXPECT_EQ(client->CheckHealth(absl::Seconds(60)),
            absl::UnavailableError("health: the server reports NOT_SERVING"));
  server.Stop();
  EXPECT_EQ(client->CheckHealth(absl::Seconds(60)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client->GetServerInfo(absl::Seconds(60)).status().code(),
            absl::StatusCode::kUnavailable);
}

// What it says to a process whose gRPC has begun already does nothing.
TEST(Client, PollingIsTheEnvironmentsToRefuse) {
  const auto strategy = [] {
    const char* value = getenv("GRPC_POLL_STRATEGY");
    return std::string(value == nullptr ? "" : value);
  };
  const std::string old = strategy();
  unsetenv("GRPC_POLL_STRATEGY");
  UsePolling();
  EXPECT_EQ(strategy(), "poll");
  setenv("GRPC_POLL_STRATEGY", "epoll1", 1);
  UsePolling();
  EXPECT_EQ(strategy(), "epoll1");
  old.empty() ? unsetenv("GRPC_POLL_STRATEGY") : setenv("GRPC_POLL_STRATEGY", old.c_str(), 1);
}

}  // namespace
}  // namespace attnd
