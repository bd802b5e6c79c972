// What attnload is made of, without a server: percentiles, arrivals, files, stability, the search.
#include <fstream>

#include "client/tools/load/arrivals.h"
#include "client/tools/load/histogram.h"
#include "client/tools/load/load_flags.h"
#include "client/tools/load/page.h"
#include "client/tools/load/rows.h"
#include "client/tools/load/search.h"
#include "client/tools/load/step_result.h"
#include "client/tools/load/table.h"
#include "client/tools/load/work_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attnd::tools {
namespace {

using ::testing::HasSubstr;

TEST(Histogram, ExactBelow256AndCloseAbove) {
  Histogram small;
  for (int64_t value = 1; value <= 200; ++value) small.Add(value);
  EXPECT_EQ(small.PercentileUs(50), 100);
  EXPECT_EQ(small.PercentileUs(99), 198);
  EXPECT_EQ(small.PercentileUs(100), 200);
  for (int64_t value : {257, 1000, 123457, 99999999, 1 << 30}) {
    Histogram one;
    one.Add(value);
    one.Add(int64_t{1} << 40);
    EXPECT_NEAR(one.PercentileUs(50), value, value * 0.004) << value;
    EXPECT_EQ(one.PercentileUs(100), int64_t{1} << 40);
  }
}

TEST(Histogram, TakesAnythingAndMerges) {
  Histogram a, b;
  EXPECT_EQ(a.PercentileUs(99), 0);
  a.Add(-5);
  a.Add(INT64_MAX);
  b.Add(7);
  a.Merge(b);
  EXPECT_EQ(a.total(), 3);
  EXPECT_EQ(a.PercentileUs(50), 7);
}

std::unique_ptr<Work> SmallWork(std::vector<CallKind> kinds = {CallKind()}) {
  for (CallKind& kind : kinds) kind.q_len = 1;
  return *Work::Create(std::move(kinds), Transport::kUnary, 1);
}

std::vector<double> TimesOf(Arrivals& arrivals) {
  std::vector<double> times;
  while (const auto arrival = arrivals.Next()) times.push_back(absl::ToDoubleSeconds(arrival->at));
  return times;
}

TEST(Arrivals, ConstantRateIsAtEqualDistances) {
  const auto work = SmallWork();
  const auto arrivals =
      ArrivalsAtRate({100, 100, false, 1}, absl::Seconds(1), absl::Seconds(2), *work, 1);
  const std::vector<double> times = TimesOf(*arrivals);
  ASSERT_NEAR(times.size(), 300, 1);
  for (size_t i = 0; i < times.size(); ++i) EXPECT_NEAR(times[i], (i + 1) / 100.0, 1e-6);
}

TEST(Arrivals, RampRisesWithTheIntegralOfItsRate) {
  const auto work = SmallWork();
  // From 100/s to 300/s in 10 s: 100 t + 10 t^2 by t.
  const auto arrivals =
      ArrivalsAtRate({100, 300, false, 1}, absl::ZeroDuration(), absl::Seconds(10), *work, 1);
  const std::vector<double> times = TimesOf(*arrivals);
  ASSERT_NEAR(times.size(), 2000, 1);
  for (double t : {1.0, 5.0, 9.0}) {
    const auto by_then = std::upper_bound(times.begin(), times.end(), t) - times.begin();
    EXPECT_NEAR(by_then, 100 * t + 10 * t * t, 1.01) << t;
  }
  const auto falling =
      ArrivalsAtRate({300, 100, false, 1}, absl::ZeroDuration(), absl::Seconds(10), *work, 1);
  EXPECT_NEAR(TimesOf(*falling).size(), 2000, 1);
}

TEST(Arrivals, PoissonHasItsMeanAndItsSpread) {
  const auto work = SmallWork();
  const RateShape shape{1000, 1000, true, 1};
  const auto arrivals = ArrivalsAtRate(shape, absl::ZeroDuration(), absl::Seconds(100), *work, 7);
  const std::vector<double> times = TimesOf(*arrivals);
  EXPECT_NEAR(times.size(), 100'000, 1500);  // nearly 5 standard deviations
  double sum = 0;
  double squares = 0;
  for (size_t i = 1; i < times.size(); ++i) {
    const double gap = times[i] - times[i - 1];
    sum += gap;
    squares += gap * gap;
  }
  const double mean = sum / times.size();
  EXPECT_NEAR(squares / times.size() / (mean * mean), 2, 0.1);  // exponential
  const auto again = ArrivalsAtRate(shape, absl::ZeroDuration(), absl::Seconds(100), *work, 7);
  EXPECT_EQ(TimesOf(*again), times);
}

TEST(Arrivals, BurstsKeepTheRate) {
  const auto work = SmallWork();
  const auto arrivals =
      ArrivalsAtRate({100, 100, false, 20}, absl::ZeroDuration(), absl::Seconds(10), *work, 1);
  const std::vector<double> times = TimesOf(*arrivals);
  ASSERT_NEAR(times.size(), 1000, 20);
  for (size_t i = 0; i < times.size(); ++i) EXPECT_NEAR(times[i], (i / 20 + 1) * 0.2, 1e-6);
}

TEST(Arrivals, KindsComeByTheirWeights) {
  std::vector<CallKind> kinds(2);
  kinds[0].weight = 3;
  kinds[1].priority = 1;
  const auto work = SmallWork(kinds);
  const auto arrivals =
      ArrivalsAtRate({1000, 1000, true, 1}, absl::ZeroDuration(), absl::Seconds(10), *work, 1);
  int64_t counts[2] = {0, 0};
  while (const auto arrival = arrivals->Next()) ++counts[arrival->kind];
  EXPECT_NEAR(static_cast<double>(counts[0]) / (counts[0] + counts[1]), 0.75, 0.03);
}

class WorkFile : public ::testing::Test {
 protected:
  std::string Write(const std::string& text) {
    const std::string path = ::testing::TempDir() + "/work_file";
    std::ofstream(path) << text;
    return path;
  }
};

TEST_F(WorkFile, ReadsAMix) {
  CallKind defaults;
  defaults.q_heads = 2;
  const auto kinds = ReadMix(
      Write("# two kinds\n\nweight=3 q_len=128\nweight=0.5 q_len=64 kv_len=96 dtype=bfloat16 "
            "causal=bottom-right window_left=7 priority=1 timeout_ms=20  # urgent\n"),
      defaults);
  ASSERT_TRUE(kinds.ok()) << kinds.status();
  ASSERT_EQ(kinds->size(), 2u);
  EXPECT_EQ((*kinds)[0].weight, 3);
  EXPECT_EQ((*kinds)[0].q_shape(), (std::vector<int64_t>{1, 2, 128, 64}));
  EXPECT_EQ((*kinds)[0].kv_shape(), (std::vector<int64_t>{1, 2, 128, 64}));
  EXPECT_EQ(Describe((*kinds)[1]),
            "bfloat16 q [1,2,64,64] kv [1,2,96,64] causal bottom-right window 7,- priority 1 "
            "timeout 20ms");
}

TEST_F(WorkFile, ReadsATraceWithEachKindOnce) {
  const auto trace =
      ReadTrace(Write("at_ms=0 q_len=8\nat_ms=1.5 q_len=9\nat_ms=1.5 q_len=8\n"), CallKind());
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->kinds.size(), 2u);
  ASSERT_EQ(trace->arrivals.size(), 3u);
  EXPECT_EQ(trace->arrivals[2].at, absl::Microseconds(1500));
  EXPECT_EQ(trace->arrivals[2].kind, 0u);
  const auto arrivals = ArrivalsOfTrace(trace->arrivals, 0.5, absl::Seconds(1));
  EXPECT_EQ(TimesOf(*arrivals), (std::vector<double>{0, 0.003, 0.003}));
  const auto cut = ArrivalsOfTrace(trace->arrivals, 1, absl::Milliseconds(1));
  EXPECT_EQ(TimesOf(*cut).size(), 1u);
}

TEST_F(WorkFile, DefaultsHoldForTheLinesBelow) {
  const auto kinds =
      ReadMix(Write("q_len=1\ndefault q_heads=3 head_dim=16\nq_len=2\ndefault q_heads=5\nq_len=3"),
              CallKind());
  ASSERT_TRUE(kinds.ok()) << kinds.status();
  ASSERT_EQ(kinds->size(), 3u);
  EXPECT_EQ((*kinds)[0].q_shape(), (std::vector<int64_t>{1, 8, 1, 64}));
  EXPECT_EQ((*kinds)[1].q_shape(), (std::vector<int64_t>{1, 3, 2, 16}));
  EXPECT_EQ((*kinds)[2].q_shape(), (std::vector<int64_t>{1, 5, 3, 16}));
}

TEST_F(WorkFile, TheSampleTraceIsOne) {
  const auto trace = ReadTrace("client/tools/load/llm_prefill.trace", CallKind());
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->arrivals.size(), 240u);
  int64_t urgent = 0;
  for (const Arrival& arrival : trace->arrivals) {
    const CallKind& kind = trace->kinds[arrival.kind];
    EXPECT_LE(kind.q_len, 4096);
    EXPECT_EQ(kind.causal, Causal::kBottomRight);
    EXPECT_EQ(kind.priority == 1, kind.timeout.has_value());
    urgent += kind.priority;
  }
  EXPECT_GT(urgent, 0);
}

TEST_F(WorkFile, NamesTheLineThatIsWrong) {
  const auto mix = [&](const std::string& text) {
    return std::string(ReadMix(Write(text), CallKind()).status().message());
  };
  const auto trace = [&](const std::string& text) {
    return std::string(ReadTrace(Write(text), CallKind()).status().message());
  };
  EXPECT_THAT(mix("\nq_len=x"), HasSubstr(":2: q_len is \"x\", must be a whole number in 0..2"));
  EXPECT_THAT(mix("q_len"), HasSubstr(":1: \"q_len\" is not NAME=VALUE"));
  EXPECT_THAT(mix("speed=1"), HasSubstr("there is no field \"speed\""));
  EXPECT_THAT(mix("weight=0"), HasSubstr("weight is \"0\", must be a number above 0"));
  EXPECT_THAT(mix("at_ms=1"), HasSubstr("at_ms is for traces"));
  EXPECT_THAT(mix("q_len=2147483648 kv_len=1"), HasSubstr("bytes a tensor"));
  EXPECT_THAT(mix("# nothing\n"), HasSubstr("has no line"));
  EXPECT_THAT(mix("default q_len=1"), HasSubstr("has no line"));
  EXPECT_THAT(mix("default weight=2"), HasSubstr(":1: at_ms and weight have no default"));
  EXPECT_THAT(trace("q_len=1"), HasSubstr("at_ms is missing"));
  EXPECT_THAT(trace("at_ms=2\nat_ms=1"), HasSubstr(":2: at_ms is 1, must not be before"));
  EXPECT_THAT(trace("at_ms=nan"), HasSubstr("at_ms is \"nan\""));
  EXPECT_THAT(trace("at_ms=1 weight=2"), HasSubstr("weight is for mixes"));
  EXPECT_EQ(ReadMix("/nowhere", CallKind()).status().code(), absl::StatusCode::kNotFound);
}

TEST(Stability, IsThreeWindowsAlike) {
  const auto window = [](int64_t answered, int64_t us) {
    Window made;
    made.length_s = 1;
    made.answered = answered;
    made.chosen_us = us;
    return made;
  };
  EXPECT_FALSE(IsStable({window(100, 5), window(100, 5)}, 0.1));
  EXPECT_TRUE(IsStable({window(1, 900), window(100, 50), window(95, 52), window(105, 48)}, 0.1));
  EXPECT_FALSE(IsStable({window(100, 50), window(100, 50), window(130, 50)}, 0.1));
  EXPECT_FALSE(IsStable({window(100, 50), window(100, 60), window(100, 70)}, 0.1));
  EXPECT_FALSE(IsStable({window(0, 0), window(0, 0), window(0, 0)}, 0.1));
}

TEST(ClientBound, SaysWhatWasTheClients) {
  StepResult result;
  for (int i = 0; i < 100; ++i) {
    result.latency.Add(5000);
    result.lateness.Add(600);
  }
  EXPECT_FALSE(IsClientBound(result, 1));
  result.client_cpus = 0.95;
  EXPECT_TRUE(IsClientBound(result, 1));
  EXPECT_FALSE(IsClientBound(result, 2));
  for (int i = 0; i < 10; ++i) result.lateness.Add(1500);
  EXPECT_TRUE(IsClientBound(result, 2));
  for (int i = 0; i < 10; ++i) result.latency.Add(30'000);
  EXPECT_FALSE(IsClientBound(result, 2));  // that it does not show in
  result.unsent = 1;
  EXPECT_TRUE(IsClientBound(result, 2));
}

TEST(Slo, IsReadAndRefused) {
  const auto slo = ParseSlo("p99.9=20ms");
  ASSERT_TRUE(slo.ok()) << slo.status();
  EXPECT_EQ(slo->percent, 99.9);
  EXPECT_EQ(slo->limit, absl::Milliseconds(20));
  for (const char* bad :
       {"", "p99", "99=1ms", "p0=1ms", "p100=1ms", "p99=0", "p99=20", "p9=1s=2"}) {
    EXPECT_THAT(std::string(ParseSlo(bad).status().message()), HasSubstr("--slo is")) << bad;
  }
}

// What failed has not kept it: its latency is counted nowhere.
TEST(Slo, IsOfAllCalls) {
  StepResult result;
  for (int i = 0; i < 98; ++i) result.latency.Add(100);
  result.sent = result.answered = 98;
  const Slo p95{95, absl::Microseconds(200)};
  EXPECT_TRUE(Holds(p95, result));
  result.sent = 100;
  EXPECT_TRUE(Holds(p95, result));
  result.unsent = 5;
  EXPECT_FALSE(Holds(p95, result));
  EXPECT_FALSE(Holds({50, absl::Microseconds(50)}, result));
  EXPECT_FALSE(Holds(p95, StepResult()));
}

TEST(RateSearch, FindsTheEdgeFromBelowAndAbove) {
  for (double first : {1.0, 90.0, 5000.0}) {
    RateSearch search(first);
    while (search.next_per_s()) search.Tell(*search.next_per_s() <= 777);
    ASSERT_TRUE(search.highest_per_s() && search.lowest_broken_per_s()) << first;
    EXPECT_LE(*search.highest_per_s(), 777);
    EXPECT_GT(*search.highest_per_s(), 777 / 1.05);
  }
}

TEST(RateSearch, Ends) {
  RateSearch never(1);
  while (never.next_per_s()) never.Tell(false);
  EXPECT_FALSE(never.highest_per_s());
  RateSearch always(1);
  while (always.next_per_s()) always.Tell(true);
  EXPECT_EQ(*always.highest_per_s(), 1 << (RateSearch::kMostProbes - 1));
  EXPECT_FALSE(always.lowest_broken_per_s());
}

TEST(LoadFlags, ReadRates) {
  const auto plain = ParseRate("100");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->shape, (RateShape{100, 100, true, 1}));
  EXPECT_FALSE(plain->of_capacity);
  const auto ramp = ParseRate("50%..150%");
  ASSERT_TRUE(ramp.ok());
  EXPECT_EQ(ramp->shape, (RateShape{0.5, 1.5, true, 1}));
  EXPECT_TRUE(ramp->of_capacity);
  for (const char* bad : {"", "0", "-1", "nan", "1..", "1..2..3", "50%..100", "%", "1e9"}) {
    EXPECT_THAT(std::string(ParseRate(bad).status().message()), HasSubstr("--rate is")) << bad;
  }
}

TEST(LoadFlags, MakeAPlan) {
  const auto line = ReadCommandLine({"--concurrency=1,2,4", "--rate=10,20", "--arrivals=constant",
                                     "--burst=3", "--kv_heads=2", "--warmup=0"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->plan.concurrency, (std::vector<int64_t>{1, 2, 4}));
  ASSERT_EQ(line->plan.rates.size(), 2u);
  EXPECT_EQ(line->plan.rates[1].shape, (RateShape{20, 20, false, 3}));
  EXPECT_EQ(line->plan.kinds[0].kv_shape(), (std::vector<int64_t>{1, 2, 512, 64}));
  EXPECT_EQ(line->plan.step.warmup, absl::ZeroDuration());
}

TEST(LoadFlags, RefuseWhatMeansNothing) {
  const auto error = [](const std::vector<std::string>& words) {
    return std::string(ReadCommandLine(words).status().message());
  };
  EXPECT_EQ(error({"--trace=x", "--rate=1"}), "--trace and --rate exclude each other");
  EXPECT_EQ(error({"--burst=2"}), "--burst needs --rate");
  EXPECT_THAT(error({"--concurrency=1,0"}), HasSubstr("--concurrency is \"0\""));
  EXPECT_THAT(error({"--slo=p99=1ms", "--rate=1,2"}), HasSubstr("one rate, with --slo"));
  EXPECT_THAT(error({"--dtype=int8"}), HasSubstr("--dtype is \"int8\""));
  EXPECT_THAT(error({"--window=1ms"}), HasSubstr("10ms or more"));
  EXPECT_THAT(error({"--mix=/nowhere"}), HasSubstr("/nowhere: no such file"));
}

Step SomeStep() {
  Step step;
  step.spec.mode = StepSpec::Mode::kOpen;
  step.spec.rate = {100, 400, true, 8};
  StepResult& result = step.result;
  result.sent = 10;
  result.answered = 6;
  result.failed_by_code = {{absl::StatusCode::kResourceExhausted, 2}};
  result.first_error = absl::ResourceExhaustedError("full \xff");
  result.cancelled = 1;
  result.lost = 1;
  result.unsent = 10;
  result.elapsed = absl::Seconds(3);
  result.sending = absl::Seconds(2);
  for (int i = 0; i < 6; ++i) result.latency.Add(100 + i);
  return step;
}

TEST(Rows, HaveEveryCount) {
  Plan plan;
  plan.kinds = {CallKind()};
  const auto row = RowOf(plan, SomeStep(), 3);
  EXPECT_EQ(row["step"], 3);
  EXPECT_EQ(row["sent"], 10);
  EXPECT_EQ(row["failed"], 2);
  EXPECT_EQ(row["failed_by_code"]["RESOURCE_EXHAUSTED"], 2);
  EXPECT_EQ(row["offered_per_s"], 10.0);
  EXPECT_EQ(row["answered_per_s"], 2.0);
  EXPECT_EQ(row["p50_us"], 102);
  EXPECT_EQ(row["p999_us"], 105);
  for (const char* field :
       {"answered", "cancelled", "lost", "wrong", "p90_us", "p99_us", "stable", "client_bound"}) {
    EXPECT_TRUE(row.contains(field)) << field;
  }
  EXPECT_EQ(nlohmann::json::parse(ToJsonLine(row))["rate_to_per_s"], 400.0);
}

TEST(Rows, CsvHasAValueAColumn) {
  Plan plan;
  plan.kinds = {CallKind()};
  const std::string line = ToCsvLine(RowOf(plan, SomeStep(), 1));
  const std::string header = CsvHeader();
  EXPECT_EQ(std::count(line.begin(), line.end(), ','),
            std::count(header.begin(), header.end(), ','));
  EXPECT_THAT(line, ::testing::StartsWith("1,open,,100.0,400.0,,3.0,0,10,6,2,1,1,10,"));
}

// A server's text cannot end the script element that it lies in.
TEST(Page, HoldsTheRowsAndNoForeignMarkup) {
  Plan plan;
  plan.kinds.resize(20);
  RunResult run;
  run.steps = {SomeStep()};
  run.steps[0].result.first_error = absl::InternalError("</script><script>alert(1)</script>");
  const std::string page = ToPage("<b>", plan, run);
  EXPECT_THAT(page, HasSubstr("\"sent\":10,"));
  EXPECT_THAT(page, HasSubstr("12 kinds more"));
  EXPECT_THAT(page, HasSubstr("\\u003c/script>\\u003cscript>alert(1)"));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("{{data}}")));
  EXPECT_EQ(WriteTextFile("/nowhere/page.html", page).code(), absl::StatusCode::kPermissionDenied);
}

TEST(Table, SaysWhatWentWrong) {
  Plan plan;
  plan.kinds = {CallKind(), CallKind()};
  EXPECT_THAT(TableHead(plan), HasSubstr("weight 1"));
  const std::string text = TableLine(SomeStep());
  for (const char* part : {"100.0/s to 400.0/s by 8", "2 failed with RESOURCE_EXHAUSTED", "full",
                           "1 cancelled", "1 lost", "10 were due", "not stable"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  plan.slo = Slo{99, absl::Milliseconds(20)};
  RunResult run;
  EXPECT_THAT(SloText(plan, run), HasSubstr("no rate that was tried held p99 within 20ms"));
  run.slo_rate_per_s = 12.5;
  EXPECT_THAT(SloText(plan, run), HasSubstr("12.5/s is the highest"));
}

}  // namespace
}  // namespace attnd::tools
