// Calls that go as streams: by choice, by size, and because a message was refused.
#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "client/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_server.h"

namespace attnd {
namespace {

using ::attnd::testing::Echo;
using ::attnd::testing::FakeServer;
using ::testing::HasSubstr;

class StreamProblem {
 public:
  explicit StreamProblem(int64_t rows, Transport transport) : q_(rows * 64), kv_(64, 1.0f) {
    for (size_t i = 0; i < q_.size(); ++i) q_[i] = static_cast<float>(i % 8191);
    request_.q = {DType::kFloat32, {1, 1, rows, 64}, q_.data()};
    request_.k = request_.v = {DType::kFloat32, {1, 1, 1, 64}, kv_.data()};
    request_.transport = transport;
  }
  AttentionRequest& request() { return request_; }
  bool IsEcho(const Tensor& o) const {
    return o.bytes.size() == q_.size() * 4 &&
           std::equal(o.bytes.begin(), o.bytes.end(),
                      reinterpret_cast<const unsigned char*>(q_.data()));
  }

 private:
  std::vector<float> q_;
  std::vector<float> kv_;
  AttentionRequest request_;
};

std::unique_ptr<Client> Connect(const std::string& address) {
  auto client = Client::Connect(address);
  EXPECT_TRUE(client.ok()) << client.status();
  return *std::move(client);
}

TEST(ClientStream, GoesAndComesInChunks) {
  FakeServer server;
  const auto client = Connect(server.address());
  // Chunks are of 1 MiB, 4096 rows; a call with more than 4 MiB on a side does not go on in this
  // thread, which 512 bytes of K and V tell apart from the rest.
  for (const int64_t rows : {1, 4096, 4097, 16382, 16383, 50000}) {
    StreamProblem problem(rows, Transport::kStream);
    problem.request().want_lse = true;
    const auto result = client->Attention(problem.request());
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(problem.IsEcho(result->o)) << rows;
    EXPECT_EQ(result->lse->bytes.size(), static_cast<size_t>(rows) * 4);
    EXPECT_EQ(result->transport, Transport::kStream);
    EXPECT_EQ(result->sent_bytes, rows * 256 + 512);
  }
  EXPECT_EQ(server.calls(), 0);
  EXPECT_EQ(server.streams(), 6);
}

TEST(ClientStream, AnswersGoToTheCallersMemory) {
  FakeServer server;
  const auto client = Connect(server.address());
  for (const Transport transport : {Transport::kUnary, Transport::kStream}) {
    StreamProblem problem(150'000, transport);  // beyond kBeyondCachesBytes
    Tensor own;
    own.bytes.resize(static_cast<size_t>(problem.request().q.size_bytes()));
    problem.request().o_place = OutputView{own.bytes.data()};
    const auto result = client->Attention(problem.request());
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_TRUE(problem.IsEcho(own));
    EXPECT_TRUE(result->o.bytes.empty());
    EXPECT_EQ(result->o.shape, problem.request().q.shape);
  }
}

TEST(ClientStream, EmptyTensorsHaveNoChunks) {
  FakeServer server;
  StreamProblem problem(0, Transport::kStream);
  const auto result = Connect(server.address())->Attention(problem.request());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->o.bytes.empty());
}

TEST(ClientStream, AutoTakesItFor64MbAndMore) {
  FakeServer server;
  const auto client = Connect(server.address());
  StreamProblem small(1000, Transport::kAuto);
  auto result = client->Attention(small.request());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->transport, Transport::kUnary);
  StreamProblem large(65 << 12, Transport::kAuto);
  result = client->Attention(large.request());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->transport, Transport::kStream);
  EXPECT_TRUE(large.IsEcho(result->o));
  large.request().transport = Transport::kUnary;
  result = client->Attention(large.request());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->transport, Transport::kUnary);
}

// A server with a small limit for messages.
grpc::Status RefuseMessages(grpc::ServerContext* context, const v1::ComputeRequest& request,
                            v1::ComputeResponse* response) {
  if (context->client_metadata().count("attnd-request-bytes") == 0) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "no size is declared"};
  }
  const auto declared = context->client_metadata().find("attnd-request-bytes")->second;
  if (std::stoll(std::string(declared.data(), declared.size())) <= 1 << 21) {
    return Echo(request, response);
  }
  context->AddTrailingMetadata("attnd-version", "1");
  context->AddTrailingMetadata("grpc-retry-pushback-ms", "-1");
  return {grpc::StatusCode::RESOURCE_EXHAUSTED, "over this server's limit"};
}

TEST(ClientStream, AutoTakesItWhereTheMessageIsRefusedForGood) {
  FakeServer server(RefuseMessages);
  const auto client = Connect(server.address());
  StreamProblem problem(20000, Transport::kAuto);  // 5 MB
  auto result = client->Attention(problem.request());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->transport, Transport::kStream);
  EXPECT_EQ(result->tries, 2);
  EXPECT_TRUE(problem.IsEcho(result->o));
  problem.request().transport = Transport::kUnary;
  EXPECT_EQ(client->Attention(problem.request()).status(),
            absl::ResourceExhaustedError("over this server's limit"));
}

TEST(ClientStream, RetriesAndErrorsAreThoseOfCompute) {
  std::atomic<int> calls{0};
  FakeServer server([&](grpc::ServerContext* context, const v1::ComputeRequest& request,
                        v1::ComputeResponse* response) {
    context->AddTrailingMetadata("attnd-version", "1");
    if (++calls == 1) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "not now");
    if (calls == 3) return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no");
    return Echo(request, response);
  });
  const auto client = Connect(server.address());
  StreamProblem problem(20000, Transport::kStream);
  const auto result = client->Attention(problem.request());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->tries, 2);
  EXPECT_TRUE(problem.IsEcho(result->o));
  EXPECT_EQ(client->Attention(problem.request()).status(), absl::InvalidArgumentError("no"));
}

TEST(ClientStream, AnAnswerThatDoesNotFitIsInternal) {
  FakeServer server([](grpc::ServerContext* context, const v1::ComputeRequest& request,
                       v1::ComputeResponse* response) {
    const grpc::Status status = Echo(request, response);
    context->AddTrailingMetadata("attnd-version", "1");
    response->mutable_o()->append(request.header().request_id());
    if (request.header().request_id().empty()) response->mutable_o()->resize(1000);
    return status;
  });
  const auto client = Connect(server.address());
  StreamProblem problem(20000, Transport::kStream);
  const auto lacks = client->Attention(problem.request());
  EXPECT_EQ(lacks.status(), absl::InternalError("answer: its chunks lack 5119000 bytes"));
  problem.request().request_id = "more";
  const auto beyond = client->Attention(problem.request());
  EXPECT_EQ(beyond.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(beyond.status().message(), HasSubstr("beyond the 5120000 bytes"));
  EXPECT_EQ(server.streams(), 2);  // another try would give the same
}

// Case S28: at once, not at a deadline.
TEST(ClientStream, S28AServerThatDiesInMidStreamIsAnError) {
  FakeServer server(
      [](grpc::ServerContext* context, const v1::ComputeRequest&, v1::ComputeResponse*) {
        while (!context->IsCancelled()) std::this_thread::yield();
        return grpc::Status::CANCELLED;
      });
  ClientOptions options;
  options.max_tries = 1;
  const auto client = *Client::Connect(server.address(), options);
  StreamProblem problem(20000, Transport::kStream);
  std::promise<absl::Status> ended;
  const auto call = client->AttentionAsync(
      problem.request(),
      [&](absl::StatusOr<AttentionResult> result) { ended.set_value(result.status()); });
  while (server.streams() == 0) std::this_thread::yield();
  server.Stop();
  EXPECT_FALSE(ended.get_future().get().ok());
}

TEST(ClientStream, CancelEndsIt) {
  FakeServer server(
      [](grpc::ServerContext* context, const v1::ComputeRequest&, v1::ComputeResponse*) {
        while (!context->IsCancelled()) std::this_thread::yield();
        return grpc::Status::CANCELLED;
      });
  const auto client = Connect(server.address());
  StreamProblem problem(20000, Transport::kStream);
  std::promise<absl::Status> ended;
  const auto call = client->AttentionAsync(
      problem.request(),
      [&](absl::StatusOr<AttentionResult> result) { ended.set_value(result.status()); });
  while (server.streams() == 0) std::this_thread::yield();
  call->Cancel();
  EXPECT_EQ(ended.get_future().get().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace attnd
