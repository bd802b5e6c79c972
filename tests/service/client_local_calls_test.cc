// The C++ client's calls without gRPC: which go so, how they end, and what is done when they
// cannot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/client.h"
#include "server/regions/protocol/frames.h"
#include "server/regions/region_socket.h"
#include "tests/client/fake_server.h"
#include "tests/service/harness.h"

namespace attnd::testing {
namespace {

using regions::CallAnswerFrame;
using regions::CallFrame;
using regions::UniqueFd;
using ::testing::HasSubstr;

// Q, K, V, O in a region, and LSE if wanted.
class InPlace {
 public:
  explicit InPlace(Client& client, uint64_t seed = 1, bool want_lse = true)
      : values_(MakeRequest(kShape, seed)) {
    auto region = client.NewRegion(1 << 20, absl::Seconds(10));
    EXPECT_TRUE(region.ok()) << region.status();
    region_ = *std::move(region);
    request.q = Put(values_.q(), {1, 2, 16, 32});
    request.k = Put(values_.k(), {1, 2, 2, 32});
    request.v = Put(values_.v(), {1, 2, 2, 32});
    o_ = *NewTensor(*region_, DType::kFloat32, {1, 2, 16, 32});
    request.o_place = o_.output();
    request.want_lse = want_lse;
    if (want_lse) {
      request.lse_place = NewTensor(*region_, DType::kFloat32, {1, 2, 16})->output();
    }
  }
  InPlace(const InPlace&) = delete;

  // The bits of a call by gRPC, and they were not there before.
  ::testing::AssertionResult IsRight(const TestServer& server, Client& client) {
    const std::string expected = server.Compute(values_).response.o();
    std::memset(o_.data, 0, expected.size());
    const auto result = client.Attention(request);
    if (!result.ok()) return ::testing::AssertionFailure() << result.status();
    if (result->transport != Transport::kRegion)
      return ::testing::AssertionFailure() << "no region";
    if (std::memcmp(o_.data, expected.data(), expected.size()) == 0) {
      return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure() << "O is another";
  }

  AttentionRequest request;

 private:
  static constexpr Shape kShape{
      .q_heads = 2, .kv_heads = 2, .q_len = 16, .kv_len = 2, .head_dim = 32};

  TensorView Put(const std::string& bytes, std::vector<int64_t> shape) const {
    const RegionTensor tensor = *NewTensor(*region_, DType::kFloat32, std::move(shape));
    std::memcpy(tensor.data, bytes.data(), bytes.size());
    return tensor.input();
  }

  const v1::ComputeRequest values_;
  std::unique_ptr<LocalRegion> region_;
  RegionTensor o_;
};

class ClientLocalCallsTest : public ::testing::Test {
 protected:
  ClientLocalCallsTest()
      : device_(new GatedDevice),
        server_(std::make_unique<TestServer>(Options(), std::unique_ptr<server::Device>(device_))) {
  }

  server::ServerOptions Options() const {
    server::ServerOptions options = TestOptions();
    options.listen = "unix:" + folder_ / "grpc.sock";  // the same for one that is started anew
    options.local_socket = folder_ / "side.sock";
    return options;
  }
  std::unique_ptr<Client> NewClient(ClientOptions options = {}) const {
    options.local_socket = folder_ / "side.sock";
    auto client = Client::Connect("unix:" + folder_ / "grpc.sock", options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
  double Calls(const std::string& transport) const {
    return server_->Metric("attnd_calls_total{transport=\"" + transport + "\"}");
  }
  void ExpectIdle() const {
    EXPECT_TRUE(Eventually([&] {
      return (*server_)->metrics().received() == (*server_)->metrics().finished() &&
             server_->Metric("attnd_region_leases") == 0;
    }));
  }

  const TempFolder folder_;
  GatedDevice* device_;  // the server's
  std::unique_ptr<TestServer> server_;
};

TEST_F(ClientLocalCallsTest, WhatIsWaitedForAndAllInRegionsGoesWithoutGrpc) {
  const auto client = NewClient();
  for (const bool want_lse : {false, true}) {
    InPlace problem(*client, 1, want_lse);
    const double before = Calls("local");
    ASSERT_TRUE(problem.IsRight(*server_, *client));
    EXPECT_EQ(Calls("local"), before + 1);
    const auto started = client->Start(problem.request, Progress::kWhileWaited);
    EXPECT_TRUE((*started->WaitFor(absl::InfiniteDuration())).ok());
    EXPECT_EQ(Calls("local"), before + 2);
  }
  // What the client copies into a region of its own, too.
  const v1::ComputeRequest values = MakeRequest({});
  AttentionRequest copied;
  copied.q = {DType::kFloat32, {1, 2, 8, 16}, values.q().data()};
  copied.k = {DType::kFloat32, {1, 1, 8, 16}, values.k().data()};
  copied.v = {DType::kFloat32, {1, 1, 8, 16}, values.v().data()};
  copied.transport = Transport::kRegion;
  const auto result = client->Attention(copied);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(std::string(result->o.bytes.begin(), result->o.bytes.end()),
            server_->Compute(values).response.o());
  EXPECT_EQ(Calls("local"), 5);
  ExpectIdle();
}

TEST_F(ClientLocalCallsTest, TheOthersGoByGrpc) {
  const auto client = NewClient();
  InPlace problem(*client);
  const auto by_grpc = [&](const std::function<bool()>& call) {
    const double before = Calls("unary");
    EXPECT_TRUE(call());
    EXPECT_EQ(Calls("unary"), before + 1);
  };
  by_grpc([&] {  // who does not wait
    std::promise<bool> ok;
    client->AttentionAsync(problem.request, [&](const auto& result) { ok.set_value(result.ok()); });
    return ok.get_future().get();
  });
  by_grpc([&] {
    return client->Start(problem.request, Progress::kByItself)
        ->WaitFor(absl::InfiniteDuration())
        ->ok();
  });
  by_grpc([&] {  // an output in the answer
    AttentionRequest request = problem.request;
    request.lse_place = absl::nullopt;
    return client->Attention(request).ok();
  });
  by_grpc([&] {  // too long for a packet
    AttentionRequest request = problem.request;
    request.request_id = std::string(regions::kMaxCallPacketBytes, 'x');
    return absl::IsInvalidArgument(client->Attention(request).status());  // says the server
  });
  ClientOptions none;
  none.calls_without_grpc = false;
  ClientOptions metadata;
  metadata.metadata = {{"for-a-proxy", "1"}};
  for (const ClientOptions& options : {none, metadata}) {
    const auto other = NewClient(options);
    InPlace its(*other);
    by_grpc([&] { return other->Attention(its.request).ok(); });
  }
  EXPECT_EQ(Calls("local"), 0);
}

TEST_F(ClientLocalCallsTest, ErrorsAreTheServersAndTheConnectionIsKept) {
  const auto client = NewClient();
  InPlace problem(*client);
  AttentionRequest wrong = problem.request;
  wrong.alibi_slopes = {1, 2, 3};
  for (int i = 0; i < 3; ++i) {
    const auto started = client->Start(wrong, Progress::kWhileWaited);
    const absl::Status status = started->WaitFor(absl::InfiniteDuration())->status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("alibi_slopes"));
    EXPECT_TRUE(started->failure().from_server);
    EXPECT_TRUE(started->failure().untouched);
    EXPECT_EQ(started->failure().tries, 1);
  }
  EXPECT_TRUE(problem.IsRight(*server_, *client));
  EXPECT_EQ(server_->Metric("attnd_call_connections"), 1);
}

TEST_F(ClientLocalCallsTest, DeadlinesAndCancellationEndACallAtOnce) {
  const auto client = NewClient();
  InPlace late(*client, 1);
  InPlace unwanted(*client, 2);
  ASSERT_TRUE(late.IsRight(*server_, *client));
  device_->Hold();
  late.request.timeout = absl::Milliseconds(100);
  const absl::Time begin = absl::Now();
  EXPECT_EQ(client->Attention(late.request).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(100));
  const auto started = client->Start(unwanted.request, Progress::kWhileWaited);
  EXPECT_FALSE(started->WaitFor(absl::Milliseconds(50)));
  std::thread cancels([&] { started->Cancel(); });
  EXPECT_EQ(started->WaitFor(absl::InfiniteDuration())->status().code(),
            absl::StatusCode::kCancelled);
  cancels.join();
  client->Start(unwanted.request, Progress::kWhileWaited).reset();  // never waited for
  device_->Release();
  ExpectIdle();
  InPlace next(*client, 3);
  EXPECT_TRUE(next.IsRight(*server_, *client));
}

TEST_F(ClientLocalCallsTest, ACancelAtAnyMomentHarmsNoOtherCall) {
  const auto client = NewClient();
  InPlace problem(*client);
  for (int i = 0; i < 200; ++i) {
    const auto started = client->Start(problem.request, Progress::kWhileWaited);
    std::thread cancels([&] { started->Cancel(); });
    const absl::Status status = started->WaitFor(absl::InfiniteDuration())->status();
    EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
    cancels.join();
    InPlace next(*client, 2);
    ASSERT_TRUE(client->Attention(next.request).ok()) << i;
  }
  ExpectIdle();
}

TEST_F(ClientLocalCallsTest, EachThreadThatWaitsHasAConnectionOfItsOwn) {
  const auto client = NewClient();
  constexpr int kThreads = 6;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      InPlace problem(*client, static_cast<uint64_t>(t));
      for (int i = 0; i < 30; ++i) ASSERT_TRUE(problem.IsRight(*server_, *client));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Calls("local"), 30 * kThreads);
  EXPECT_LE(server_->Metric("attnd_call_connections"), kThreads);
  EXPECT_GE(server_->Metric("attnd_call_connections"), 1);
}

TEST_F(ClientLocalCallsTest, AServerStartedAnewIsCalledAnew) {
  const auto client = NewClient();
  for (int start = 0; start < 3; ++start) {
    InPlace problem(*client);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(problem.IsRight(*server_, *client)) << start;
    EXPECT_EQ(Calls("local"), 2);
    server_.reset();
    server_ = std::make_unique<TestServer>(Options());
    // A region of the one before.
    EXPECT_EQ(client->Attention(problem.request).status().code(), absl::StatusCode::kNotFound);
  }
}

// A call that cannot wait so long goes by gRPC, on no new connection.
TEST_F(ClientLocalCallsTest, NoCallLosesItsDeadlineToAConnection) {
  const auto client = NewClient();
  InPlace problem(*client);
  problem.request.timeout = absl::Milliseconds(50);
  const absl::Status status = client->Attention(problem.request).status();
  EXPECT_TRUE(status.ok() || absl::IsDeadlineExceeded(status)) << status;  // of a slow machine
  EXPECT_EQ(server_->Metric("attnd_call_connections"), 0);
  problem.request.timeout = absl::Seconds(60);
  EXPECT_TRUE(client->Attention(problem.request).ok());
  problem.request.timeout = absl::Milliseconds(50);  // there is one now
  const double before = Calls("local");
  client->Attention(problem.request).IgnoreError();
  EXPECT_EQ(Calls("local"), before + 1);
}

TEST_F(ClientLocalCallsTest, AServerWithTenantsIsCalledByGrpc) {
  server_.reset();
  server::ServerOptions options = Options();
  options.tenants = folder_ / "tenants";
  std::ofstream(options.tenants) << "unix weight=1\n";
  server_ = std::make_unique<TestServer>(options);
  const auto client = NewClient();
  InPlace problem(*client);
  EXPECT_TRUE(problem.IsRight(*server_, *client));
  EXPECT_TRUE(problem.IsRight(*server_, *client));
  EXPECT_EQ(Calls("local"), 0);
  EXPECT_EQ(server_->Metric("attnd_call_connections"), 0);
}

// A server whose side socket does with calls what a test tells it to, beside a gRPC that echoes.
class OddServer {
 public:
  // Gets a connection with a call on it.
  using Serve = std::function<void(int socket, const std::string& packet)>;

  explicit OddServer(Serve serve) : serve_(std::move(serve)) {
    server::RegionSocketOptions options;
    options.path = folder_ / "side.sock";
    options.instance_id = "instance";  // FakeServer's
    options.take_calls = [this](UniqueFd socket) {
      threads_.emplace_back(
          [this, held = std::make_shared<UniqueFd>(std::move(socket))] { ServeOne(held->get()); });
      return absl::OkStatus();
    };
    auto socket = server::RegionSocket::Listen(
        options, std::make_shared<server::RegionTable>(server::RegionLimits()));
    EXPECT_TRUE(socket.ok()) << socket.status();
    socket_ = *std::move(socket);
  }
  ~OddServer() {
    socket_.reset();
    for (std::thread& thread : threads_) thread.join();
  }

  std::unique_ptr<Client> NewClient() const {
    ClientOptions options;
    options.local_socket = folder_ / "side.sock";
    options.first_backoff = absl::Milliseconds(1);
    return *Client::Connect(grpc.address(), options);
  }

  FakeServer grpc{
      [](grpc::ServerContext*, const v1::ComputeRequest& request, v1::ComputeResponse* response) {
        v1::ComputeResponseHeader* const header = response->mutable_header();
        *header->mutable_o() = request.header().q();
        header->mutable_o()->clear_region();
        header->set_transport(v1::TRANSPORT_REGION);
        return grpc::Status::OK;
      }};

 private:
  void ServeOne(int socket) const {
    pollfd polled = {socket, POLLIN, 0};
    poll(&polled, 1, -1);
    std::array<char, 1 << 16> bytes;
    const auto packet = regions::ReceivePacket(socket, bytes.data(), bytes.size());
    if (!packet.ok() || packet->size_bytes == 0) return;
    serve_(socket, std::string(bytes.data(), static_cast<size_t>(packet->size_bytes)));
  }

  const TempFolder folder_;
  const Serve serve_;
  std::vector<std::thread> threads_;
  std::unique_ptr<server::RegionSocket> socket_;
};

void Say(int socket, const CallAnswerFrame& frame, const std::string& text) {
  const std::string packet =
      std::string(reinterpret_cast<const char*>(&frame), sizeof(frame)) + text;
  EXPECT_TRUE(regions::SendPacket(socket, packet.data(), static_cast<int64_t>(packet.size())).ok());
}

TEST(ClientLocalCalls, AConnectionThatBreaksIsTriedAgainByGrpc) {
  OddServer server([](int, const std::string&) {});
  const auto client = server.NewClient();
  InPlace problem(*client, 1, false);
  const auto result = client->Attention(problem.request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->tries, 2);
  EXPECT_EQ(server.grpc.calls(), 1);
}

TEST(ClientLocalCalls, SoIsARefusalThatSaysWhen) {
  OddServer server([](int socket, const std::string& packet) {
    EXPECT_GT(packet.size(), sizeof(CallFrame));
    CallAnswerFrame frame;
    frame.code = static_cast<int32_t>(absl::StatusCode::kResourceExhausted);
    frame.has_pushback = 1;
    frame.pushback_ms = 30;
    Say(socket, frame, "later");
  });
  const auto client = server.NewClient();
  InPlace problem(*client, 1, false);
  const absl::Time begin = absl::Now();
  const auto result = client->Attention(problem.request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->tries, 2);
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(30));
}

TEST(ClientLocalCalls, WhatIsNoAnswerIsAnError) {
  for (const std::string& garbage : {std::string("short"), std::string(100, 'x')}) {
    OddServer server([&](int socket, const std::string&) {
      regions::SendPacket(socket, garbage.data(), static_cast<int64_t>(garbage.size()))
          .IgnoreError();
    });
    const auto client = server.NewClient();
    InPlace problem(*client, 1, false);
    const auto result = client->Attention(problem.request);  // nothing attnd's said it: tried again
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->tries, 2);
  }
  OddServer server([&](int socket, const std::string&) { Say(socket, {}, "no response"); });
  const auto client = server.NewClient();
  InPlace problem(*client, 1, false);
  EXPECT_EQ(client->Attention(problem.request).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(server.grpc.calls(), 0);
}

}  // namespace
}  // namespace attnd::testing
