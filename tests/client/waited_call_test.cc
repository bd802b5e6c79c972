// Calls whose caller waits for them, each way that such a call goes: polled by the waiting thread,
// which is how messages and short streams go, and by itself, as long streams do. ASan and TSan see
// what the assertions cannot: who still touches the caller's memory after the end.
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "client/channel.h"
#include "client/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/holding_server.h"
#include "tests/client/tcp_proxy.h"

namespace attnd {
namespace {

using ::attnd::testing::Echo;
using ::attnd::testing::FakeServer;
using ::attnd::testing::HoldingServer;
using ::attnd::testing::kAtOnce;
using ::attnd::testing::OwnedRequest;
using ::attnd::testing::TcpProxy;
using ::testing::HasSubstr;

struct Way {
  const char* name;
  Transport transport;
  int64_t bytes;
};
constexpr Way kMessage{"message", Transport::kUnary, 1 << 20};
constexpr Way kTinyStream{"tiny_stream", Transport::kStream, 4 << 10};
constexpr Way kShortStream{"short_stream", Transport::kStream, 3 << 20};
constexpr Way kLongStream{"long_stream", Transport::kStream, 8 << 20};

void PrintTo(const Way& way, std::ostream* to) { *to << way.name; }
std::string NameOf(const ::testing::TestParamInfo<Way>& info) { return info.param.name; }

class Waited : public ::testing::TestWithParam<Way> {
 protected:
  struct Running {
    std::unique_ptr<OwnedRequest> owned;
    std::unique_ptr<StartedCall> call;  // goes first
  };

  void Connect(const std::string& address, int max_tries = 1) {
    ClientOptions options;
    options.max_tries = max_tries;
    client_ = *Client::Connect(address, options);
  }
  std::unique_ptr<OwnedRequest> NewRequest() {
    auto owned = std::make_unique<OwnedRequest>(GetParam().bytes);
    owned->request.transport = GetParam().transport;
    for (int64_t i = 0; i < GetParam().bytes / 4; i += 999) {
      owned->data[i] = static_cast<float>(i);
    }
    return owned;
  }
  Running Start(absl::optional<absl::Duration> timeout = absl::nullopt) {
    Running running;
    running.owned = NewRequest();
    running.owned->request.timeout = timeout;
    running.call = client_->Start(running.owned->request, Progress::kWhileWaited);
    return running;
  }
  absl::StatusOr<AttentionResult> Compute() {
    const auto owned = NewRequest();
    return client_->Attention(owned->request);
  }
  static absl::Status EndOf(StartedCall& call) {
    return call.WaitFor(absl::InfiniteDuration())->status();
  }
  static bool IsEcho(const absl::StatusOr<AttentionResult>& result, const OwnedRequest& owned) {
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() &&
           std::equal(result->o.bytes.begin(), result->o.bytes.end(),
                      reinterpret_cast<const unsigned char*>(owned.data.get()),
                      reinterpret_cast<const unsigned char*>(owned.data.get()) + GetParam().bytes);
  }

  std::unique_ptr<Client> client_;
};

class Polled : public Waited {};
class WaitedStream : public Waited {};

TEST_P(Waited, AnswersLikeAnyOther) {
  FakeServer server;
  Connect(server.address());
  for (int i = 0; i < 3; ++i) {
    const Running running = Start();
    const auto result = running.call->WaitFor(absl::InfiniteDuration());
    EXPECT_TRUE(IsEcho(*result, *running.owned));
    EXPECT_EQ((*result)->transport, GetParam().transport);
  }
}

// What a polled call is: without its caller nothing of it happens at the client.
TEST_P(Polled, GoesOnInTheThreadThatWaits) {
  std::atomic<int> answered{0};
  FakeServer server(
      [&](grpc::ServerContext*, const v1::ComputeRequest& request, v1::ComputeResponse* response) {
        grpc::Status status = Echo(request, response);
        ++answered;
        return status;
      });
  Connect(server.address());
  ASSERT_TRUE(Compute().ok());  // connects
  const auto owned = NewRequest();
  std::vector<float> o(GetParam().bytes / 4, -1.0f);
  owned->request.o_place = OutputView{o.data()};
  const auto call = client_->Start(owned->request, Progress::kWhileWaited);
  // A long message is not on its way in full before its caller waits.
  for (int i = 0; i < 50 && answered < 2; ++i) absl::SleepFor(absl::Milliseconds(2));
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_TRUE(std::all_of(o.begin(), o.end(), [](float x) { return x == -1.0f; }));
  EXPECT_TRUE(EndOf(*call).ok());
  EXPECT_TRUE(std::equal(o.begin(), o.end(), owned->data.get()));
}

TEST_P(Waited, AWaitMayEndBeforeTheCallDoes) {
  HoldingServer holding;
  Connect(holding.server().address());
  const Running running = Start();
  for (const absl::Duration wait : {-absl::Seconds(1), absl::ZeroDuration(), absl::Milliseconds(5),
                                    absl::Microseconds(1), absl::Milliseconds(50)}) {
    EXPECT_FALSE(running.call->WaitFor(wait).has_value());
  }
  holding.Release();
  const auto result = running.call->WaitFor(kAtOnce);
  ASSERT_TRUE(result.has_value());
  EXPECT_TRUE(IsEcho(*result, *running.owned));
}

TEST_P(Waited, EndsInWaitsOfAMicrosecond) {
  FakeServer server;
  Connect(server.address());
  const Running running = Start();
  auto result = running.call->WaitFor(absl::ZeroDuration());
  while (!result) result = running.call->WaitFor(absl::Microseconds(1));
  EXPECT_TRUE(IsEcho(*result, *running.owned));
}

TEST_P(Waited, IsCancelledFromAnotherThreadDuringTheWait) {
  HoldingServer holding;
  Connect(holding.server().address(), 4);
  const Running running = Start();
  std::thread canceller([&] {
    holding.WaitForCalls(1);
    running.call->Cancel();
  });
  EXPECT_EQ(EndOf(*running.call), absl::CancelledError("cancelled by the caller"));
  canceller.join();
  running.call->Cancel();  // nothing left to do
  EXPECT_EQ(running.call->failure().tries, 1);
}

TEST_P(Waited, IsCancelledBeforeTheWait) {
  HoldingServer holding;
  Connect(holding.server().address(), 4);
  for (int i = 0; i < 3; ++i) {
    const Running running = Start();
    running.call->Cancel();
    EXPECT_EQ(EndOf(*running.call).code(), absl::StatusCode::kCancelled);
  }
}

TEST_P(Waited, CancelRacesItWithoutHarm) {
  FakeServer server;
  Connect(server.address());
  for (int i = 0; i < 100; ++i) {
    Running running = Start();
    std::thread canceller([&, i] {
      if (i % 4 > 0) absl::SleepFor(absl::Microseconds(50 * (i % 40)));
      running.call->Cancel();
    });
    const auto result = running.call->WaitFor(absl::InfiniteDuration());
    const auto owned = std::move(running.owned);  // it is the caller's again
    EXPECT_TRUE(result->ok() ? IsEcho(*result, *owned) : absl::IsCancelled(result->status()))
        << result->status();
    canceller.join();
  }
}

TEST_P(Waited, OneThatIsDroppedEnds) {
  HoldingServer holding;
  Connect(holding.server().address());
  Start();
  {
    const Running running = Start();
    EXPECT_FALSE(running.call->WaitFor(absl::Milliseconds(5)).has_value());
  }
  const Running last = Start();
  std::thread release([&] { holding.Release(); });
  EXPECT_TRUE(EndOf(*last.call).ok());
  release.join();
}

TEST_P(Waited, EndsAtItsDeadline) {
  HoldingServer holding;
  Connect(holding.server().address(), 4);
  const absl::Time start = absl::Now();
  const Running running = Start(absl::Milliseconds(50));
  EXPECT_EQ(EndOf(*running.call).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(absl::Now() - start, kAtOnce);
  const Running late = Start(absl::ZeroDuration());
  EXPECT_EQ(EndOf(*late.call).code(), absl::StatusCode::kDeadlineExceeded);
}

// Case S22: a storm of short deadlines; each caller frees its memory at once.
TEST_P(Waited, S22_StormOfShortDeadlines) {
  FakeServer server;
  Connect(server.address());
  std::atomic<int> answered{0}, late{0}, other{0};
  std::vector<std::thread> callers;
  callers.reserve(4);
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int i = 0; i < 25; ++i) {
        const Running running = Start(absl::Microseconds(200 * (1 + (i + caller) % 10)));
        const absl::Status status = EndOf(*running.call);
        ++(status.ok() ? answered : absl::IsDeadlineExceeded(status) ? late : other);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(other, 0);
  EXPECT_GT(late, 0);
  EXPECT_TRUE(Compute().ok());
}

TEST_P(Waited, IsTriedAgain) {
  std::atomic<int> calls{0};
  FakeServer server(
      [&](grpc::ServerContext*, const v1::ComputeRequest& request, v1::ComputeResponse* response) {
        if (++calls < 3) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "not now");
        return Echo(request, response);
      });
  Connect(server.address(), 4);
  const Running running = Start();
  auto result = running.call->WaitFor(absl::Milliseconds(1));
  while (!result) result = running.call->WaitFor(absl::Milliseconds(1));
  EXPECT_TRUE(IsEcho(*result, *running.owned));
  EXPECT_EQ((*result)->tries, 3);
}

TEST_P(Waited, IsCancelledInTheWaitBeforeARetry) {
  FakeServer server(
      [&](grpc::ServerContext* context, const v1::ComputeRequest&, v1::ComputeResponse*) {
        context->AddTrailingMetadata("grpc-retry-pushback-ms", "50000");
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "later");
      });
  Connect(server.address(), 4);
  const absl::Time start = absl::Now();
  const Running running = Start();
  EXPECT_FALSE(running.call->WaitFor(absl::Milliseconds(100)).has_value());
  running.call->Cancel();
  EXPECT_EQ(EndOf(*running.call).code(), absl::StatusCode::kCancelled);
  EXPECT_LT(absl::Now() - start, kAtOnce);
}

TEST_P(Waited, KeepsTheServersErrorAndAccount) {
  FakeServer server(
      [&](grpc::ServerContext* context, const v1::ComputeRequest&, v1::ComputeResponse*) {
        context->AddTrailingMetadata("attnd-version", "1");
        context->AddTrailingMetadata("attnd-untouched", "1");
        return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "q is wrong");
      });
  Connect(server.address(), 4);
  const Running running = Start();
  const absl::Status end = EndOf(*running.call);
  EXPECT_EQ(end.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(end.message(), "q is wrong");
  EXPECT_TRUE(running.call->failure().from_server);
  EXPECT_TRUE(running.call->failure().untouched);
  EXPECT_EQ(running.call->failure().tries, 1);
}

TEST_P(Waited, ABrokenAnswerIsInternalAndNotAskedForAgain) {
  FakeServer server(
      [](grpc::ServerContext*, const v1::ComputeRequest& request, v1::ComputeResponse* response) {
        grpc::Status status = Echo(request, response);
        if (request.header().request_id() == "lacks") response->mutable_o()->resize(8);
        if (request.header().request_id() == "more") response->mutable_o()->append("more");
        if (request.header().request_id() == "other")
          response->mutable_header()->mutable_o()->clear_shape();
        return status;
      });
  Connect(server.address(), 4);
  for (const char* const how : {"lacks", "more", "other"}) {
    const auto owned = NewRequest();
    owned->request.request_id = how;
    const auto call = client_->Start(owned->request, Progress::kWhileWaited);
    const absl::Status end = EndOf(*call);
    EXPECT_EQ(end.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(end.message(), HasSubstr("answer: "));
    EXPECT_EQ(call->failure().tries, 1);
  }
  EXPECT_EQ(server.calls() + server.streams(), 3);
  EXPECT_TRUE(Compute().ok());
}

// The server refuses a stream at its header, while chunks are on their way.
TEST_P(WaitedStream, AServerThatEndsItEarlySaysWhy) {
  FakeServer server;
  server.EndStreamsEarly({grpc::StatusCode::FAILED_PRECONDITION, "not today"});
  Connect(server.address(), 4);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(Compute().status(), absl::FailedPreconditionError("not today"));
  }
  server.EndStreamsEarly(grpc::Status::OK);
  EXPECT_EQ(Compute().status(), absl::InternalError("answer: it has no header"));
}

// Case S28: the server dies in the middle of a call.
TEST_P(Waited, S28_ALostServerIsAnErrorAtOnce) {
  HoldingServer holding;
  TcpProxy proxy(holding.server().port());
  Connect(proxy.address());
  const absl::Time start = absl::Now();
  const Running running = Start();
  std::thread cutter([&] {
    holding.WaitForCalls(1);
    proxy.CutConnections();
  });
  EXPECT_EQ(EndOf(*running.call).code(), absl::StatusCode::kUnavailable);
  EXPECT_LT(absl::Now() - start, kAtOnce);
  cutter.join();
}

TEST_P(Waited, NobodyThereIsUnavailable) {
  int port = 0;
  {
    FakeServer gone;
    port = gone.port();
  }
  Connect("127.0.0.1:" + std::to_string(port));
  EXPECT_EQ(Compute().status().code(), absl::StatusCode::kUnavailable);
}

// A machine that froze does not hold the caller's memory for ever.
TEST_P(Waited, AFrozenServerLetsGoOfTheMemoryWhenTheConnectionIsGivenUp) {
  FakeServer server;
  TcpProxy proxy(server.port());
  Connect(proxy.address());
  ASSERT_TRUE(Compute().ok());
  proxy.FreezeConnections();
  const absl::Time start = absl::Now();
  {
    const Running running = Start(absl::Milliseconds(200));
    EXPECT_EQ(EndOf(*running.call).code(), absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_LT(absl::Now() - start, client::kStalledTimeout + kAtOnce);
}

TEST_P(Waited, TheClientMayGoRightAfterIt) {
  FakeServer server;
  for (int i = 0; i < 30; ++i) {
    Connect(server.address());
    if (i % 2 == 0) {
      EXPECT_TRUE(Compute().ok());
    } else {
      Start();
    }
  }
}

TEST_P(Waited, ManyAtOnceOnOneClient) {
  FakeServer server;
  Connect(server.address());
  std::vector<std::thread> callers;
  callers.reserve(4);
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < 10; ++i) {
        const Running first = Start();
        const Running second = Start();
        EXPECT_TRUE(IsEcho(*second.call->WaitFor(absl::InfiniteDuration()), *second.owned));
        EXPECT_TRUE(IsEcho(*first.call->WaitFor(absl::InfiniteDuration()), *first.owned));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

INSTANTIATE_TEST_SUITE_P(Ways, Waited,
                         ::testing::Values(kMessage, kTinyStream, kShortStream, kLongStream),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Ways, Polled, ::testing::Values(kMessage, kTinyStream, kShortStream),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Ways, WaitedStream,
                         ::testing::Values(kTinyStream, kShortStream, kLongStream), NameOf);

}  // namespace
}  // namespace attnd
