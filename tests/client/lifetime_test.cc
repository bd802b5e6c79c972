// How calls end early - deadline, cancel, lost and frozen servers - and who may still touch the
// caller's memory then. ASan and TSan see what the assertions cannot.
#include <algorithm>
#include <atomic>
#include <future>

#include "client/channel.h"
#include "client/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/holding_server.h"
#include "tests/client/tcp_proxy.h"

namespace attnd {
namespace {

using ::attnd::testing::FakeServer;
using ::attnd::testing::HoldingServer;
using ::attnd::testing::kAtOnce;
using ::attnd::testing::OwnedRequest;
using ::attnd::testing::TcpProxy;

std::unique_ptr<Client> Connect(const std::string& address, int max_tries = 1) {
  ClientOptions options;
  options.max_tries = max_tries;
  return *Client::Connect(address, options);
}

TEST(Deadline, EndsACallThatTheServerHolds) {
  HoldingServer holding;
  const auto client = Connect(holding.server().address(), 4);
  OwnedRequest owned(1 << 20);
  owned.request.timeout = absl::Milliseconds(50);
  const absl::Time start = absl::Now();
  EXPECT_EQ(client->Attention(owned.request).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(absl::Now() - start, kAtOnce);
  EXPECT_LE(holding.server().calls(), 1);  // 0 where connecting took that long
}

TEST(Deadline, ThatHasPassedAlready) {
  FakeServer server;
  const auto client = Connect(server.address());
  OwnedRequest owned(1 << 10);
  for (absl::Duration timeout : {absl::ZeroDuration(), -absl::Seconds(5)}) {
    owned.request.timeout = timeout;
    EXPECT_EQ(client->Attention(owned.request).status().code(),
              absl::StatusCode::kDeadlineExceeded);
  }
  owned.request.timeout = absl::InfiniteDuration();
  EXPECT_TRUE(client->Attention(owned.request).ok());
}

// Case S22: a storm of short deadlines; each caller frees its memory at once.
TEST(Deadline, S22_StormOfShortDeadlines) {
  FakeServer server;
  const auto client = Connect(server.address());
  std::atomic<int> answered{0}, late{0}, other{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int i = 0; i < 25; ++i) {
        OwnedRequest owned(4 << 20);
        owned.request.timeout = absl::Microseconds(500 * (1 + (i + caller) % 10));
        const absl::Status status = client->Attention(owned.request).status();
        ++(status.ok() ? answered : absl::IsDeadlineExceeded(status) ? late : other);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(other, 0);
  EXPECT_EQ(answered + late, 100);
  EXPECT_GT(late, 0);
  OwnedRequest good(4 << 20);
  EXPECT_TRUE(client->Attention(good.request).ok());
}

TEST(Cancel, EndsARunningCall) {
  HoldingServer holding;
  const auto client = Connect(holding.server().address(), 4);
  OwnedRequest owned(1 << 20);
  std::promise<absl::Status> ended;
  const auto call = client->AttentionAsync(
      owned.request,
      [&](absl::StatusOr<AttentionResult> result) { ended.set_value(result.status()); });
  holding.WaitForCalls(1);
  call->Cancel();
  EXPECT_EQ(ended.get_future().get().code(), absl::StatusCode::kCancelled);
  call->Cancel();  // nothing left to do
  EXPECT_EQ(holding.server().calls(), 1);
}

TEST(Cancel, EndsTheWaitBeforeARetry) {
  std::atomic<int> refused{0};
  FakeServer server(
      [&](grpc::ServerContext* context, const v1::ComputeRequest&, v1::ComputeResponse*) {
        context->AddTrailingMetadata("grpc-retry-pushback-ms", "50000");
        ++refused;
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "later");
      });
  const auto client = Connect(server.address(), 4);
  OwnedRequest owned(1 << 10);
  std::promise<absl::Status> ended;
  const absl::Time start = absl::Now();
  const auto call = client->AttentionAsync(
      owned.request,
      [&](absl::StatusOr<AttentionResult> result) { ended.set_value(result.status()); });
  while (refused == 0) std::this_thread::yield();
  call->Cancel();  // in the wait, or just before it
  EXPECT_EQ(ended.get_future().get().code(), absl::StatusCode::kCancelled);
  EXPECT_LT(absl::Now() - start, kAtOnce);
  EXPECT_EQ(server.calls(), 1);
}

TEST(Cancel, RacesTheCallWithoutHarm) {
  FakeServer server;
  const auto client = Connect(server.address());
  for (int i = 0; i < 200; ++i) {
    auto owned = std::make_unique<OwnedRequest>(i % 2 == 0 ? 1 << 10 : 1 << 18);
    std::promise<absl::Status> ended;
    const auto call =
        client->AttentionAsync(owned->request, [&](absl::StatusOr<AttentionResult> result) {
          owned.reset();  // it is the caller's again
          ended.set_value(result.status());
        });
    if (i % 4 < 2) std::this_thread::yield();
    call->Cancel();
    const absl::Status status = ended.get_future().get();
    EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
  }
}

// Case S28: the server dies in the middle of a call.
TEST(LostServer, S28_ErrorAtOnce) {
  HoldingServer holding;
  TcpProxy proxy(holding.server().port());
  const auto client = Connect(proxy.address());
  OwnedRequest owned(1 << 20);
  std::promise<absl::Status> ended;
  client->AttentionAsync(owned.request, [&](absl::StatusOr<AttentionResult> result) {
    ended.set_value(result.status());
  });
  holding.WaitForCalls(1);
  const absl::Time start = absl::Now();
  proxy.CutConnections();
  EXPECT_EQ(ended.get_future().get().code(), absl::StatusCode::kUnavailable);
  EXPECT_LT(absl::Now() - start, kAtOnce);
}

TEST(LostServer, TheCallIsTriedOnANewConnection) {
  HoldingServer holding;
  TcpProxy proxy(holding.server().port());
  const auto client = Connect(proxy.address(), 4);
  OwnedRequest owned(1 << 20);
  std::promise<absl::StatusOr<AttentionResult>> ended;
  client->AttentionAsync(owned.request, [&](absl::StatusOr<AttentionResult> result) {
    ended.set_value(std::move(result));
  });
  holding.WaitForCalls(1);
  proxy.CutConnections();
  holding.Release();
  const auto result = ended.get_future().get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->tries, 2);
}

// A machine that froze while a large message was on its way does not hold the caller's memory for
// ever.
TEST(FrozenServer, LetsGoOfTheMemoryWhenTheConnectionIsGivenUp) {
  FakeServer server;
  TcpProxy proxy(server.port());
  const auto client = Connect(proxy.address());
  {
    OwnedRequest warm(64 << 20);  // opens gRPC's windows wider than what sockets hold
    ASSERT_TRUE(client->Attention(warm.request).ok());
  }
  const int64_t before_bytes = proxy.forwarded_bytes();
  std::thread freezer([&] {
    while (proxy.forwarded_bytes() < before_bytes + (8 << 20)) std::this_thread::yield();
    proxy.FreezeConnections();
  });
  const absl::Time start = absl::Now();
  {
    OwnedRequest owned(256 << 20);
    owned.request.timeout = absl::Seconds(2);
    const absl::Status status = client->Attention(owned.request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  }
  EXPECT_LT(absl::Now() - start, client::kStalledTimeout + kAtOnce);
  freezer.join();
}

TEST(Async, ManyCallsEachEndOnce) {
  FakeServer server;
  const auto client = Connect(server.address());
  constexpr int kCalls = 300;
  std::vector<std::unique_ptr<OwnedRequest>> owned;
  std::atomic<int> good{0};
  std::vector<std::atomic<int>> ends(kCalls);
  std::promise<void> all;
  std::atomic<int> left{kCalls};
  for (int i = 0; i < kCalls; ++i) {
    owned.push_back(std::make_unique<OwnedRequest>(256 << (i % 12)));
    owned.back()->data[0] = static_cast<float>(i);
    client->AttentionAsync(owned.back()->request, [&, i](absl::StatusOr<AttentionResult> result) {
      ++ends[i];
      if (result.ok() && reinterpret_cast<const float*>(result->o.bytes.data())[0] == i) ++good;
      if (--left == 0) all.set_value();
    });
  }
  all.get_future().wait();
  EXPECT_EQ(good, kCalls);
  EXPECT_TRUE(std::all_of(ends.begin(), ends.end(), [](const auto& n) { return n == 1; }));
}

TEST(Async, TheDestructorWaitsForItsCalls) {
  HoldingServer holding;
  OwnedRequest owned(1 << 20);
  std::atomic<bool> ended{false};
  auto client = Connect(holding.server().address());
  client->AttentionAsync(owned.request, [&](absl::StatusOr<AttentionResult>) { ended = true; });
  holding.WaitForCalls(1);
  std::thread release([&] { holding.Release(); });
  client.reset();
  EXPECT_TRUE(ended);
  release.join();
}

TEST(Async, ACallbackMayCallAgain) {
  FakeServer server;
  const auto client = Connect(server.address());
  OwnedRequest owned(1 << 12);
  std::promise<absl::Status> ended;
  client->AttentionAsync(owned.request, [&](absl::StatusOr<AttentionResult>) {
    client->AttentionAsync(owned.request, [&](absl::StatusOr<AttentionResult> second) {
      ended.set_value(second.status());
    });
  });
  EXPECT_TRUE(ended.get_future().get().ok());
}

// The client goes while gRPC's threads are just leaving its calls. A channel whose last owner is
// such a thread takes the process down now and then.
TEST(Client, MayGoRightAfterACall) {
  FakeServer server;
  OwnedRequest owned(1 << 10);
  for (int i = 0; i < 300; ++i) {
    const auto client = Connect(server.address());
    if (i % 3 == 0) {
      EXPECT_TRUE(client->Attention(owned.request).ok());
    } else if (i % 3 == 1) {
      client->AttentionAsync(owned.request, [](absl::StatusOr<AttentionResult>) {})->Cancel();
    } else {
      EXPECT_TRUE(client->CheckHealth(absl::Seconds(60)).ok());
    }
  }
}

TEST(Client, ACallMayOutliveIt) {
  FakeServer server;
  OwnedRequest owned(1 << 10);
  auto client = Connect(server.address());
  const auto call = client->AttentionAsync(owned.request, [](absl::StatusOr<AttentionResult>) {});
  client.reset();
  call->Cancel();
}

TEST(Async, ACallThatIsDroppedStillEnds) {
  FakeServer server;
  const auto client = Connect(server.address());
  OwnedRequest owned(1 << 12);
  std::promise<void> ended;
  client->AttentionAsync(owned.request,
                         [&](absl::StatusOr<AttentionResult>) { ended.set_value(); });
  ended.get_future().wait();
}

}  // namespace
}  // namespace attnd
