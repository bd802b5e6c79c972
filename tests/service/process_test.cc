// The program: its command line, signals, exit status and memory.
#include "tests/service/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/service/harness.h"

namespace attnd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

Outcome Compute(const AttndProcess& attnd, const v1::ComputeRequest& request) {
  return PendingCall(Connect(attnd.address()), request.SerializeAsString()).Wait();
}

double Metric(const AttndProcess& attnd, const std::string& series) {
  return MetricIn(HttpGet(attnd.http_port(), "/metrics").second, series);
}

// One that takes long enough to be caught running, and no longer than a minute anywhere.
v1::ComputeRequest LongRequest() {
  return MakeRequest({.q_heads = 8, .kv_heads = 8, .q_len = 2048, .kv_len = 2048, .head_dim = 64});
}

TEST(ProcessTest, BadFlagsEndWithTwoAndNameFlagAndValue) {
  const struct {
    std::string flag;
    std::string says;
  } cases[] = {
      {"--nonsense", "nonsense"},
      {"--threads=many", "many"},
      {"--threads=-3", "--threads=-3"},
      {"--max_queue_requests=0", "--max_queue_requests=0"},
      {"--listen=0.0.0.0:0", "--insecure_listen"},
      {"--http_listen=0.0.0.0:0", "--insecure_listen"},
      {"--log_level=loud", "--log_level=loud"},
      {"--flagfile=/nonexistent", "/nonexistent"},
      {"stray", "stray"},
  };
  for (const auto& c : cases) {
    const ExitedProcess exited = RunAttnd({c.flag});
    EXPECT_EQ(exited.exit_status, 2) << c.flag;
    EXPECT_THAT(exited.output, HasSubstr(c.says));
  }
  EXPECT_EQ(RunAttnd({"--help"}).exit_status, 0);
  const ExitedProcess version = RunAttnd({"--version"});
  EXPECT_EQ(version.exit_status, 0);
  EXPECT_EQ(version.output, "attnd " ATTND_VERSION "\n");
}

TEST(ProcessTest, AnUnknownBackendIsRefusedAndTheChoiceListed) {
  const ExitedProcess exited = RunAttnd({"--backend=abacus"});
  EXPECT_EQ(exited.exit_status, 1);
  EXPECT_THAT(exited.output, AllOf(HasSubstr("abacus"), HasSubstr("reference")));
}

TEST(ProcessTest, FlagsComeFromAFileToo) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/attnd_flags_", getpid());
  std::ofstream(path) << "--backend=reference\n--drain_delay_ms=0\n";
  AttndProcess attnd({"--flagfile=" + path});
  ASSERT_TRUE(attnd.WaitUntilReady());
  attnd.Signal(SIGTERM);
  EXPECT_THAT(attnd.WaitForExit().output, HasSubstr("backend=reference"));
  std::filesystem::remove(path);
}

TEST(ProcessTest, AProbeAsksTheServerForItsHealth) {
  AttndProcess attnd({"--drain_delay_ms=0"});
  ASSERT_TRUE(attnd.WaitUntilReady());
  EXPECT_EQ(RunAttnd({"--probe", "--listen=" + attnd.address()}).exit_status, 0);
  // As in a container, where the server listens everywhere.
  EXPECT_EQ(RunAttnd({"--probe", absl::StrCat("--listen=0.0.0.0:", attnd.port())}).exit_status, 0);
  attnd.Signal(SIGINT);
  EXPECT_EQ(attnd.WaitForExit().exit_status, 0);
  const ExitedProcess gone = RunAttnd({"--probe", "--listen=" + attnd.address()});
  EXPECT_EQ(gone.exit_status, 1);
  EXPECT_THAT(gone.output, HasSubstr("does not answer"));
}

TEST(ProcessTest, S43ASecondServerOnThePortDoesNotStart) {
  AttndProcess first({"--drain_delay_ms=0"});
  ASSERT_TRUE(first.WaitUntilReady());
  const ExitedProcess second = RunAttnd({"--listen=" + first.address()});
  EXPECT_EQ(second.exit_status, 1);
  EXPECT_THAT(second.output, HasSubstr(first.address()));
  const v1::ComputeRequest request = MakeRequest({});
  EXPECT_TRUE(IsRight(Compute(first, request), request));
}

TEST(ProcessTest, S39SigtermUnderLoadCompletesWhatIsInFlight) {
  AttndProcess attnd({"--drain_delay_ms=1000"});
  ASSERT_TRUE(attnd.WaitUntilReady());
  const auto channel = Connect(attnd.address());
  const v1::ComputeRequest request = MakeRequest({.q_len = 64, .kv_len = 64, .head_dim = 64});
  // Callers that come again and again; an error other than the refusal is a call lost.
  std::atomic<int64_t> good{0};
  std::atomic<int64_t> refused{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 8; ++t) {
    callers.emplace_back([&] {
      while (refused < 100) {
        const Outcome outcome = PendingCall(channel, request.SerializeAsString()).Wait();
        if (outcome.code() == grpc::StatusCode::UNAVAILABLE) {
          ++refused;
        } else {
          EXPECT_TRUE(IsRight(outcome, request));
          ++good;
        }
      }
    });
  }
  EXPECT_TRUE(Eventually([&] { return good > 50; }));
  attnd.Signal(SIGTERM);
  const int64_t before = good;
  const ExitedProcess exited = attnd.WaitForExit();
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(exited.exit_status, 0) << exited.output;
  EXPECT_GT(good, before);  // served during the delay
  EXPECT_THAT(exited.output, AllOf(HasSubstr("event=draining"), HasSubstr("event=drained")));
}

TEST(ProcessTest, ADrainThatHasToCutEndsNonZero) {
  AttndProcess attnd({"--drain_delay_ms=0", "--drain_timeout_ms=100", "--backend=reference"});
  ASSERT_TRUE(attnd.WaitUntilReady());
  PendingCall slow(Connect(attnd.address()), LongRequest().SerializeAsString());
  RawStream open(Connect(attnd.address()), kComputeMethod);
  EXPECT_TRUE(Eventually([&] { return Metric(attnd, "attnd_receive_used_bytes") > 0; }));
  attnd.Signal(SIGTERM);
  EXPECT_EQ(attnd.WaitForExit().exit_status, 3);
  EXPECT_FALSE(slow.Wait().status.ok());
}

TEST(ProcessTest, ASecondSignalEndsItAtOnce) {
  AttndProcess attnd({"--drain_delay_ms=60000"});
  ASSERT_TRUE(attnd.WaitUntilReady());
  attnd.Signal(SIGTERM);
  EXPECT_TRUE(Eventually([&] {
    return RunAttnd({"--probe", "--listen=" + attnd.address()}).exit_status == 1;
  }));
  attnd.Signal(SIGINT);
  EXPECT_EQ(attnd.WaitForExit().exit_status, 128 + SIGINT);
}

TEST(ProcessTest, AHangupReadsTheTenantsAgain) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/attnd_tenants_", getpid());
  std::ofstream(path) << "a\n";
  AttndProcess attnd({"--drain_delay_ms=0", "--tenants=" + path});
  ASSERT_TRUE(attnd.WaitUntilReady());
  const auto shows = [&](const std::string& tenant) {
    return HttpGet(attnd.http_port(), "/metrics").second.find("tenant=\"" + tenant + "\"") !=
           std::string::npos;
  };
  EXPECT_TRUE(shows("a"));
  std::ofstream(path) << "b\n";
  attnd.Signal(SIGHUP);
  EXPECT_TRUE(Eventually([&] { return shows("b"); }));
  EXPECT_FALSE(shows("a"));
  std::ofstream(path) << "c weight=none\n";
  attnd.Signal(SIGHUP);
  const v1::ComputeRequest request = MakeRequest({});
  EXPECT_TRUE(IsRight(Compute(attnd, request), request));
  EXPECT_FALSE(shows("c"));
  // Of signals that wait, the one with the lower number comes first.
  attnd.Signal(SIGTERM);
  const ExitedProcess exited = attnd.WaitForExit();
  EXPECT_EQ(exited.exit_status, 0);
  EXPECT_THAT(exited.output, AllOf(HasSubstr("tenants_kept"), HasSubstr("weight=none")));
  std::filesystem::remove(path);
}

TEST(ProcessTest, AHangupWithoutTenantsDrains) {
  AttndProcess attnd({"--drain_delay_ms=0"});
  ASSERT_TRUE(attnd.WaitUntilReady());
  attnd.Signal(SIGHUP);
  EXPECT_EQ(attnd.WaitForExit().exit_status, 0);
}

TEST(ProcessTest, ALogLineIsALine) {
  AttndProcess attnd({"--drain_delay_ms=0", "--log_level=debug"});
  ASSERT_TRUE(attnd.WaitUntilReady());
  v1::ComputeRequest request = MakeRequest({});
  request.mutable_header()->set_request_id("a\nlevel=error event=forged");
  EXPECT_TRUE(Compute(attnd, request).status.ok());
  attnd.Signal(SIGTERM);
  const ExitedProcess exited = attnd.WaitForExit();
  EXPECT_THAT(exited.output, HasSubstr(R"(request_id="a\nlevel=error event=forged")"));
  for (const absl::string_view line : absl::StrSplit(exited.output, '\n', absl::SkipEmpty())) {
    EXPECT_EQ(line.substr(0, 3), "ts=") << line;
  }
}

// Sends the beginning of a message of this size, and zeros as far as the server takes them.
grpc::Status SendZeros(const std::string& address, int64_t bytes, bool declare) {
  CallOptions options;
  options.declare = declare ? CallOptions::Declare::kSize : CallOptions::Declare::kNothing;
  return PendingCall(Connect(address), std::string(static_cast<size_t>(bytes), '\0'), options)
      .Wait()
      .status;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#else
constexpr bool kSanitized = false;
#endif

// How far its memory has risen over `before`, told for whoever reads the log.
void ExpectPeakWithin(const AttndProcess& attnd, int64_t before, int64_t bound_bytes) {
  const int64_t risen = attnd.PeakRssBytes() - before;
  std::printf("peak RSS risen by %lld MiB, bound %lld MiB\n", static_cast<long long>(risen / kMiB),
              static_cast<long long>(bound_bytes / kMiB));
  EXPECT_LT(risen, bound_bytes);
}

TEST(ProcessTest, S55MemoryStaysWithinTheReceiveBudget) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory is no measure";
  AttndProcess attnd(
      {"--max_unary_bytes=4000000", "--receive_bytes=16000000", "--arena_bytes=32000000"});
  ASSERT_TRUE(attnd.WaitUntilReady());
  const int64_t before = attnd.PeakRssBytes();

  // One call far over the limit: refused unread if it says so, cut off if it does not.
  EXPECT_EQ(SendZeros(attnd.address(), 768 * kMiB, true).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  ExpectPeakWithin(attnd, before, 8 * kMiB);
  EXPECT_FALSE(SendZeros(attnd.address(), 768 * kMiB, false).ok());
  // The budget, a quarter of it, and 64 MiB: where gRPC's own quota stands.
  const int64_t quota = 16000000 * 5 / 4 + 64 * kMiB;
  ExpectPeakWithin(attnd, before, quota + 48 * kMiB);

  const v1::ComputeRequest request = MakeRequest({});
  EXPECT_TRUE(IsRight(Compute(attnd, request), request));
}

TEST(ProcessTest, S55SixHugeCallsAtOnceWaitTheirTurn) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory is no measure";
  AttndProcess attnd({"--max_unary_bytes=540000000", "--receive_bytes=540000000",
                      "--arena_bytes=1620000000", "--log_level=warning"});
  ASSERT_TRUE(attnd.WaitUntilReady());
  const int64_t before = attnd.PeakRssBytes();
  const std::string message(512 * kMiB, '\0');
  std::vector<std::thread> callers;
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back([&] {
      // No ComputeRequest: each is received whole, in its turn, and refused.
      EXPECT_EQ(PendingCall(Connect(attnd.address()), message).Wait().code(),
                grpc::StatusCode::INVALID_ARGUMENT);
    });
  }
  for (std::thread& caller : callers) caller.join();
  ExpectPeakWithin(attnd, before, 540000000 + 160 * kMiB);
}

TEST(ProcessTest, S55AMessageThatExpandsIsRefusedUnexpanded) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory is no measure";
  AttndProcess attnd({});
  ASSERT_TRUE(attnd.WaitUntilReady());
  const int64_t before = attnd.PeakRssBytes();
  const auto stub = v1::AttentionService::NewStub(Connect(attnd.address()));
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::ComputeRequest request = MakeRequest({});
  request.mutable_q()->assign(865'000'000, '\0');
  v1::ComputeResponse response;
  EXPECT_EQ(stub->Compute(&context, request, &response).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  ExpectPeakWithin(attnd, before, 32 * kMiB);
}

TEST(ProcessTest, CallersThatWaitForTheirPermitCostLittle) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory is no measure";
  AttndProcess attnd(
      {"--max_unary_bytes=67108864", "--receive_bytes=67108864", "--arena_bytes=268435456"});
  ASSERT_TRUE(attnd.WaitUntilReady());
  RawStream silent(Connect(attnd.address()), kComputeMethod);  // holds all of the budget
  EXPECT_TRUE(Eventually([&] { return Metric(attnd, "attnd_receive_used_bytes") > 0; }));
  const int64_t before = attnd.PeakRssBytes();
  const std::string message(60 * kMiB, '\0');
  std::vector<std::unique_ptr<PendingCall>> calls;
  const auto channel = Connect(attnd.address());
  for (int i = 0; i < 20; ++i) calls.push_back(std::make_unique<PendingCall>(channel, message));
  // All of them have sent what they can when a small one, on its own connection, has timed out.
  EXPECT_EQ(PendingCall(Connect(attnd.address()), "", {.timeout = std::chrono::milliseconds(500)})
                .Wait()
                .code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  ExpectPeakWithin(attnd, before, 24 * kMiB);
}

}  // namespace
}  // namespace attnd::testing
