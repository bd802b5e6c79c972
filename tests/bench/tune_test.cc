#include "tests/bench/tune.h"

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/bench/report.h"
#include "tests/cases/run.h"

namespace attnd::bench {
namespace {

using kernels::AttentionProblem;
using kernels::AttentionTask;
using kernels::Backend;
using ::testing::HasSubstr;

// A CPU backend that says it has two configurations of its full kernels, 32 and 64 keys a tile, and
// one of the others. Those of 64 keys leave O alone if `breaks_second`.
class Puppet final : public Backend {
 public:
  Puppet(int configuration, bool breaks_second)
      : breaks_second_(breaks_second),
        configuration_(configuration),
        inner_(testing::MakeBackend("cpu_portable", 1)) {}

  absl::string_view Name() const override { return "puppet"; }
  absl::Status Supports(const AttentionProblem& problem) const override {
    return inner_->Supports(problem);
  }
  kernels::KernelPlan Plan(const AttentionProblem& problem) const override {
    kernels::KernelPlan plan{"", kernels::KeyOf(problem), 128, 32};
    if (plan.key.family == kernels::Family::kFull && configuration_ >= 1) plan.kv_tile = 64;
    plan.kernel = KernelName(plan.key, "puppet_kv") + std::to_string(plan.kv_tile);
    return plan;
  }
  int64_t WorkspaceBytes(absl::Span<const AttentionTask> tasks) const override {
    return inner_->WorkspaceBytes(Planned(tasks));
  }
  absl::Status Run(absl::Span<const AttentionTask> tasks, void* workspace,
                   kernels::Stream stream) override {
    if (breaks_second_ && tasks[0].plan.kv_tile == 64) return absl::OkStatus();
    return inner_->Run(Planned(tasks), workspace, stream);
  }

 private:
  std::vector<AttentionTask> Planned(absl::Span<const AttentionTask> tasks) const {
    std::vector<AttentionTask> planned(tasks.begin(), tasks.end());
    for (AttentionTask& task : planned) task.plan = inner_->Plan(task.problem);
    return planned;
  }

  const bool breaks_second_;
  const int configuration_;
  const std::unique_ptr<Backend> inner_;
};

BackendMaker Maker(bool breaks_second = false) {
  return [breaks_second](int configuration) {
    return std::make_unique<Puppet>(configuration, breaks_second);
  };
}

constexpr MeasureOptions kQuick{.rounds = 1, .min_time_ms = 0, .checked_rows = 4};

std::vector<testing::Case> SmallCases() { return TuneCases({.lengths = {24}, .tokens = 50}); }

TEST(TuneCasesTest, HaveEveryKeyAtEveryLength) {
  std::set<std::string> kernels;
  const std::vector<testing::Case> cases = TuneCases({});
  for (const testing::Case& c : cases) {
    const AttentionProblem problem = testing::ProblemsOf(c)[0];
    ASSERT_TRUE(Validate(problem).ok()) << c.name;
    EXPECT_EQ(problem.batch * problem.q_len, 16384) << c.name;
    kernels.insert(KernelName(kernels::KeyOf(problem), std::to_string(problem.q_len)));
  }
  EXPECT_EQ(kernels.size(), 2u * 5 * 3 * 3);
  EXPECT_EQ(cases.size(), kernels.size());
}

TEST(TuneCasesTest, ASequenceLongerThanTheTokensIsABatchOfOne) {
  for (const testing::Case& c : TuneCases({.lengths = {64}, .tokens = 50})) EXPECT_EQ(c.batch, 1);
}

TEST(MakeConfigurationsTest, EndWhereThePlansRepeat) {
  const auto configurations = MakeConfigurations(Maker(), SmallCases());
  ASSERT_TRUE(configurations.ok());
  EXPECT_EQ(configurations->size(), 2u);
}

TEST(MakeConfigurationsTest, ABackendOfOneConfigurationIsOne) {
  const auto configurations = MakeConfigurations(
      [](int) -> absl::StatusOr<std::unique_ptr<Backend>> {
        return testing::MakeBackend("cpu_portable", 1);
      },
      SmallCases());
  ASSERT_TRUE(configurations.ok());
  EXPECT_EQ(configurations->size(), 1u);
}

TEST(MakeConfigurationsTest, TheMakersErrorIsTheAnswer) {
  const auto configurations = MakeConfigurations(
      [](int number) -> absl::StatusOr<std::unique_ptr<Backend>> {
        if (number == 0) return std::make_unique<Puppet>(0, false);
        return absl::InternalError("no memory");
      },
      SmallCases());
  EXPECT_EQ(configurations.status(), absl::InternalError("no memory"));
}

TEST(TuneTest, TimesEachKernelOnceAndMarksOneAsBest) {
  const auto configurations = *MakeConfigurations(Maker(), SmallCases());
  for (const testing::Case& c : SmallCases()) {
    SCOPED_TRACE(c.name);
    const auto rows = Tune(c, configurations, kQuick);
    ASSERT_TRUE(rows.ok()) << rows.status();
    const bool full = testing::MaskName(testing::ProblemsOf(c)[0]) == "full";
    ASSERT_EQ(rows->size(), full ? 2u : 1u);
    int best = 0;
    for (const TuneRow& row : *rows) {
      EXPECT_TRUE(row.is_right) << row.row.timing.rel_error;
      EXPECT_GT(row.row.timing.rel_error, 0);
      EXPECT_GT(row.row.tflops, 0);
      best += row.is_best ? 1 : 0;
    }
    EXPECT_EQ(best, 1);
  }
}

TEST(TuneTest, AWrongKernelIsNeverTheBest) {
  const testing::Case full = SmallCases()[0];
  const auto configurations = *MakeConfigurations(Maker(/*breaks_second=*/true), {full});
  const auto rows = Tune(full, configurations, kQuick);
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_TRUE((*rows)[0].is_right && (*rows)[0].is_best);
  EXPECT_FALSE((*rows)[1].is_right || (*rows)[1].is_best);
  EXPECT_THAT(ToTable(*rows), HasSubstr("WRONG"));
}

TuneRow MakeRow(kernels::DType dtype, int64_t length, int configuration, double median_us) {
  TuneRow row;
  row.row.kernel = "kernel";
  row.row.case_name = "case";
  row.row.shape.dtype = dtype;
  row.row.shape.q_len = row.row.shape.kv_len = length;
  row.row.timing.median_us = median_us;
  row.plan = {
      "kernel", {dtype, 128, kernels::Family::kCausal}, 128, configuration == 0 ? 128 : 160};
  row.configuration = configuration;
  row.is_right = true;
  return row;
}

TEST(ToConfigLinesTest, OneChoiceForBothDtypesByLength) {
  using kernels::DType;
  const std::vector<TuneRow> rows = {
      MakeRow(DType::kBF16, 512, 0, 10),  MakeRow(DType::kBF16, 512, 1, 12),
      MakeRow(DType::kBF16, 2048, 0, 30), MakeRow(DType::kBF16, 2048, 1, 29),
      MakeRow(DType::kF16, 2048, 0, 30),  MakeRow(DType::kF16, 2048, 1, 32),
      MakeRow(DType::kBF16, 8192, 0, 90), MakeRow(DType::kBF16, 8192, 1, 80),
      MakeRow(DType::kF16, 8192, 0, 90),  MakeRow(DType::kF16, 8192, 1, 91)};
  EXPECT_EQ(ToConfigLines(rows),
            "ATTND_CONFIG(128, kCausal, 0, 2, 128, kStages, kQStages)  // configuration 0: "
            "512 +20.0 %, 2048 +1.5 %\n"
            "ATTND_CONFIG(128, kCausal, 8192, 2, 160, kStages, kQStages)  // configuration 1: "
            "8192 +5.5 %\n");
}

TEST(ToConfigLinesTest, WhatIsWrongForOneDtypeIsNotChosen) {
  using kernels::DType;
  std::vector<TuneRow> rows = {MakeRow(DType::kBF16, 512, 0, 10), MakeRow(DType::kBF16, 512, 1, 5),
                               MakeRow(DType::kF16, 512, 0, 10), MakeRow(DType::kF16, 512, 1, 5)};
  rows.back().is_right = false;
  EXPECT_EQ(ToConfigLines(rows),
            "ATTND_CONFIG(128, kCausal, 0, 2, 128, kStages, kQStages)  // configuration 0: 512\n");
}

TEST(ToJsonTest, TellsTheChoice) {
  TuneRow row = MakeRow(kernels::DType::kF16, 512, 1, 10);
  row.is_best = true;
  const std::string json = ToJson(std::vector<TuneRow>{row});
  for (const char* part : {"\"configuration\": 1", "\"family\": \"causal\"", "\"kv_tile\": 160",
                           "\"is_best\": true", "\"median_us\": 10"}) {
    EXPECT_THAT(json, HasSubstr(part));
  }
}

}  // namespace
}  // namespace attnd::bench
