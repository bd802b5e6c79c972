// Steps of a load against a fake server: every call is counted once, whatever becomes of it.
#include "client/tools/load/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_server.h"

namespace attnd::tools {
namespace {

const std::atomic<bool> kGoOn{false};

struct Load {
  explicit Load(const testing::FakeServer& server, std::vector<CallKind> kinds = {SmallKind()}) {
    ClientOptions options;
    options.max_tries = 1;
    clients.push_back(*Client::Connect(server.address(), options));
    work = *Work::Create(std::move(kinds), Transport::kUnary, 1);
    this->options.duration = absl::Milliseconds(400);
    this->options.warmup = absl::Milliseconds(50);
    this->options.window = absl::Milliseconds(50);
  }
  static CallKind SmallKind() {
    CallKind kind;
    kind.q_len = 8;
    return kind;
  }
  StepResult Run() {
    auto result = RunStep(clients, *work, spec, options, kGoOn, nullptr);
    EXPECT_TRUE(result.ok()) << result.status();
    return *std::move(result);
  }
  void SetRate(double per_s) {
    spec.mode = StepSpec::Mode::kOpen;
    spec.rate = {per_s, per_s, true, 1};
  }

  Clients clients;
  std::unique_ptr<Work> work;
  StepSpec spec;
  StepOptions options;
};

void ExpectBalanced(const StepResult& result, const testing::FakeServer& server) {
  EXPECT_EQ(result.sent, result.answered + result.failed() + result.cancelled + result.lost);
  EXPECT_EQ(result.lost, 0);
  EXPECT_EQ(result.latency.total(), result.answered);
  EXPECT_EQ(result.lateness.total(), result.sent);
  EXPECT_LE(result.sent + result.warmup_sent, server.calls() + result.cancelled);
  int64_t in_windows = 0;
  for (const Window& window : result.windows) in_windows += window.answered + window.failed;
  EXPECT_EQ(in_windows, result.sent);
}

TEST(Step, ClosedLoopCountsEveryCallAndSeesWrongAnswers) {
  testing::FakeServer server;  // answers Q, which is wrong
  Load load(server);
  load.options.flights.verify_share = 0.5;
  const StepResult result = load.Run();
  ExpectBalanced(result, server);
  EXPECT_GT(result.answered, 0);
  EXPECT_EQ(result.sent, result.answered);
  EXPECT_EQ(result.sent + result.warmup_sent, server.calls());
  EXPECT_GT(result.verified, 0);
  EXPECT_EQ(result.wrong, result.verified);
  EXPECT_EQ(result.answered_by_batch_size.at(1), result.answered);
  EXPECT_EQ(result.answered_by_transport.at("unary"), result.answered);
  EXPECT_EQ(result.stages.run_us, 7 * result.answered);
}

TEST(Step, OpenLoopOffersItsRateWhateverFails) {
  std::atomic<int> calls{0};
  testing::FakeServer server(
      [&](grpc::ServerContext*, const v1::ComputeRequest& request, v1::ComputeResponse* response) {
        if (++calls % 2 == 0) return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no");
        return testing::Echo(request, response);
      });
  Load load(server);
  load.SetRate(500);
  load.spec.rate.poisson = false;
  const StepResult result = load.Run();
  ExpectBalanced(result, server);
  // 0.05 s of warm-up and 0.4 s at 500/s, exactly so many; late ones may be left over.
  EXPECT_EQ(result.sent + result.unsent, 200);
  EXPECT_NEAR(result.offered_per_s(), 500, 5);
  EXPECT_EQ(result.failed_by_code.at(absl::StatusCode::kInvalidArgument), result.failed());
  EXPECT_GT(result.failed(), 0);
  EXPECT_GT(result.answered, 0);
  EXPECT_EQ(result.first_error, absl::InvalidArgumentError("no"));
}

// The server holds its answers back until the counted time is nearly over: in a closed loop one
// call would be slow, here all that were due meanwhile are.
TEST(Step, LatencyCountsFromWhenACallWasDue) {
  std::atomic<int> calls{0};
  Mutex stall;
  testing::FakeServer server(
      [&](grpc::ServerContext*, const v1::ComputeRequest& request, v1::ComputeResponse* response) {
        MutexLock lock(stall);  // one at a time
        if (++calls == 1) {
          const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
          while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
        }
        return testing::Echo(request, response);
      });
  Load load(server);
  load.options.warmup = absl::ZeroDuration();
  load.options.flights.max_in_flight = 1;
  load.SetRate(100);
  const StepResult result = load.Run();
  ExpectBalanced(result, server);
  EXPECT_GE(result.latency.max_us(), 200'000);
  // Of those that were due in the 200 ms, half waited for 100 ms and more, although none was sent.
  EXPECT_GE(result.latency.PercentileUs(90), 100'000);
  EXPECT_GE(result.lateness.max_us(), 100'000);
  EXPECT_TRUE(result.client_bound);
}

TEST(Step, CancelledCallsAreCountedAsThat) {
  testing::FakeServer server(
      [](grpc::ServerContext* context, const v1::ComputeRequest&, v1::ComputeResponse*) {
        while (!context->IsCancelled()) std::this_thread::yield();
        return grpc::Status::CANCELLED;
      });
  Load load(server);
  load.options.flights.cancel_share = 1;
  load.SetRate(100);
  const StepResult result = load.Run();
  ExpectBalanced(result, server);
  EXPECT_GT(result.cancelled, 0);
  EXPECT_EQ(result.cancelled, result.sent);
}

// Without an end of their own, they are cancelled once the step has settled.
TEST(Step, CallsThatNeverEndAreCancelledAtTheEnd) {
  testing::FakeServer server(
      [](grpc::ServerContext* context, const v1::ComputeRequest&, v1::ComputeResponse*) {
        while (!context->IsCancelled()) std::this_thread::yield();
        return grpc::Status::CANCELLED;
      });
  Load load(server);
  load.options.warmup = absl::ZeroDuration();
  load.options.settle = absl::Milliseconds(1);
  load.spec.concurrency = 2;
  const StepResult result = load.Run();
  ExpectBalanced(result, server);
  EXPECT_EQ(result.sent, 2);
  EXPECT_EQ(result.cancelled, 2);
}

TEST(Step, ReplaysATrace) {
  testing::FakeServer server;
  std::vector<CallKind> kinds(2, Load::SmallKind());
  kinds[1].q_len = 16;
  Load load(server, kinds);
  const std::vector<Arrival> trace = {{absl::Milliseconds(0), 0},
                                      {absl::Milliseconds(100), 1},
                                      {absl::Milliseconds(120), 1},
                                      {absl::Hours(1), 0}};
  load.spec.mode = StepSpec::Mode::kTrace;
  load.spec.trace = &trace;
  load.spec.speed = 2;
  const StepResult result = load.Run();
  ExpectBalanced(result, server);
  EXPECT_EQ(result.warmup_sent, 0);
  EXPECT_EQ(result.answered, 3);
  EXPECT_GE(result.elapsed, absl::Milliseconds(60));
}

TEST(Step, StopsWhenTold) {
  testing::FakeServer server;
  Load load(server);
  load.options.duration = absl::Hours(1);
  const std::atomic<bool> stop{true};
  for (auto mode : {StepSpec::Mode::kClosed, StepSpec::Mode::kOpen}) {
    load.SetRate(0.01);
    load.spec.mode = mode;
    EXPECT_TRUE(RunStep(load.clients, *load.work, load.spec, load.options, stop, nullptr).ok());
  }
}

TEST(Step, EndsEarlyOnceStable) {
  testing::FakeServer server;
  Load load(server);
  load.options.duration = absl::Hours(1);
  load.options.until_stable = true;
  load.options.tolerance = 1;  // three windows with answers
  load.options.percentile = 50;
  load.SetRate(200);
  const StepResult result = load.Run();
  EXPECT_TRUE(result.stable);
  EXPECT_GE(result.windows.size(), 3u);
}

TEST(Plan, MeasuresTheCapacityForRatesThatAreAPartOfIt) {
  testing::FakeServer server;
  Load load(server);
  Plan plan;
  plan.kinds = {Load::SmallKind()};
  plan.transport = Transport::kUnary;
  plan.step = load.options;
  plan.concurrency = {2};
  plan.rates.resize(2);
  plan.rates[0] = {{0.1, 0.1, true, 1}, true};
  plan.rates[1] = {{50, 50, true, 1}, false};
  const auto run = RunPlan(plan, load.clients, kGoOn, {});
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_EQ(run->steps.size(), 3u);
  EXPECT_EQ(run->steps[0].spec.mode, StepSpec::Mode::kClosed);
  EXPECT_NEAR(run->steps[1].spec.rate.from_per_s, 0.1 * run->steps[0].result.answered_per_s(),
              1e-6);
  EXPECT_EQ(run->steps[2].spec.rate.from_per_s, 50);
}

TEST(Plan, SearchesTheRateThatHolds) {
  testing::FakeServer server;
  Load load(server);
  Plan plan;
  plan.kinds = {Load::SmallKind()};
  plan.transport = Transport::kUnary;
  plan.step = load.options;
  plan.step.duration = absl::Milliseconds(100);
  plan.step.warmup = absl::ZeroDuration();
  plan.rates = {{{100, 100, true, 1}, false}};
  plan.slo = Slo{50, absl::Microseconds(1)};  // nothing holds that
  const auto run = RunPlan(plan, load.clients, kGoOn, {});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->steps.size(), static_cast<size_t>(RateSearch::kMostProbes));
  EXPECT_FALSE(run->slo_rate_per_s);
  EXPECT_EQ(run->steps[1].spec.rate.from_per_s, 50);
  EXPECT_FALSE(*run->steps[1].slo_held);
}

TEST(Plan, NoCapacityWithoutAnAnswer) {
  testing::FakeServer server(
      [](grpc::ServerContext*, const v1::ComputeRequest&, v1::ComputeResponse*) {
        return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "nothing here");
      });
  Load load(server);
  Plan plan;
  plan.kinds = {Load::SmallKind()};
  plan.step = load.options;
  plan.rates = {{{1, 1, true, 1}, true}};
  const auto run = RunPlan(plan, load.clients, kGoOn, {});
  EXPECT_EQ(run.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(run.status().message()), ::testing::HasSubstr("nothing here"));
}

}  // namespace
}  // namespace attnd::tools
