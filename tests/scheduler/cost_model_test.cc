// The cost model against devices that are known, with noise and outliers from a seed.
#include "server/scheduler/cost_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/launch_key.h"

namespace attnd::server {
namespace {

using kernels::AttentionProblem;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr TimePoint kStart{std::chrono::hours(1)};

AttentionProblem Problem(int64_t heads, int64_t len, int64_t head_dim = 64,
                         kernels::DType dtype = kernels::DType::kF32) {
  return {.dtype = dtype,
          .batch = 1,
          .q_heads = heads,
          .kv_heads = heads,
          .q_len = len,
          .kv_len = len,
          .head_dim = head_dim,
          .mask = {},
          .scale = 1};
}

Work WorkOf(const AttentionProblem& problem) {
  Work work;
  work.Add(problem);
  return work;
}

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }
Duration FromSeconds(double s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
}

bool IsHopeless(const CostModel& model, const Work& work, Duration left, TimePoint now) {
  return model.IsHopeless(work, model.Predict(work), left, now);
}

// A device with rates of its own.
struct TrueDevice {
  CostRates rates;
  double Takes(const Work& work) const {
    double s = 0;
    for (const Work::Item& item : work.items()) {
      s += rates.problem_s * item.amounts[0] + rates.flop_s * item.amounts[1] +
           rates.byte_s * item.amounts[2];
    }
    return s;
  }
};

// From 16 to 4096 rows, as many of each octave.
AttentionProblem RandomProblem(std::mt19937& random) {
  const double octave = std::uniform_real_distribution<double>(4, 12)(random);
  return Problem(std::uniform_int_distribution<int64_t>(1, 8)(random),
                 static_cast<int64_t>(std::exp2(octave)));
}

double MedianError(const CostModel& model, const TrueDevice& device, std::mt19937& random) {
  std::vector<double> errors;
  for (int i = 0; i < 101; ++i) {
    const Work work = WorkOf(RandomProblem(random));
    errors.push_back(std::fabs(std::log(Seconds(model.Predict(work)) / device.Takes(work))));
  }
  std::nth_element(errors.begin(), errors.begin() + 50, errors.end());
  return errors[50];
}

TEST(Work, CountsFlopsAsTheKernelsDo) {
  for (const kernels::Causal causal :
       {kernels::Causal::kNone, kernels::Causal::kTopLeft, kernels::Causal::kBottomRight}) {
    for (const int64_t window : {int64_t{7}, int64_t{100}, kernels::kUnbounded}) {
      for (const int64_t q_len : {1, 3, 16, 17, 100, 1000}) {
        AttentionProblem problem = Problem(3, q_len);
        problem.kv_len = 500;
        problem.mask.causal.alignment = causal;
        problem.mask.window.left = window;
        const Work work = WorkOf(problem);
        ASSERT_EQ(work.items().size(), 1u);
        const double exact = kernels::Flops(problem);
        EXPECT_NEAR(work.items()[0].amounts[1], exact, 0.06 * exact) << ToString(problem);
      }
    }
  }
}

TEST(Work, SumsByLaunchKey) {
  Work work;
  work.Add(Problem(2, 100));
  work.Add(Problem(2, 1));
  work.Add(Problem(2, 100, 80));
  work.Add(Problem(2, 100));
  ASSERT_EQ(work.items().size(), 3u) << "prefill, decode, and another class of head_dim";
  EXPECT_EQ(work.items()[0].amounts[0], 2);
  EXPECT_EQ(work.items()[0].amounts[1], 2 * kernels::Flops(Problem(2, 100)));
  EXPECT_EQ(work.items()[0].amounts[2], 2 * 4 * (2 * 100 * 64 * 4));
}

TEST(Work, EveryLaunchKeyHasItsPlace) {
  std::vector<int> keys;
  for (const auto dtype : {kernels::DType::kF32, kernels::DType::kF16, kernels::DType::kBF16}) {
    for (const int64_t head_dim : {1, 65, 97, 129, 193}) {
      for (const int64_t len : {1, 2}) {
        for (int family = 0; family < 3; ++family) {
          AttentionProblem problem = Problem(1, len, head_dim, dtype);
          if (family == 1) problem.mask.causal.alignment = kernels::Causal::kTopLeft;
          if (family == 2) problem.softcap = 1;
          keys.push_back(WorkOf(problem).items()[0].key);
        }
      }
    }
  }
  std::sort(keys.begin(), keys.end());
  for (int i = 0; i < CostModel::kKeys; ++i) EXPECT_EQ(keys[i], i);
  EXPECT_EQ(keys.size(), static_cast<size_t>(CostModel::kKeys));
}

// Devices an order of magnitude and more from where the model starts, in each direction.
TEST(CostModel, LearnsWhatADeviceTakes) {
  const CostRates start = CpuRates(2);
  for (const double off : {1 / 30.0, 1 / 5.0, 1.0, 5.0, 30.0}) {
    const TrueDevice device{{start.problem_s * 3, start.flop_s * off, start.byte_s / 3}};
    CostModel model(start);
    std::mt19937 random(7);
    std::normal_distribution<double> noise(0, 0.1);
    for (int i = 0; i < 300; ++i) {
      Work batch;
      for (int j = 0; j < 1 + i % 4; ++j) batch.Add(RandomProblem(random));
      model.Observe(batch, FromSeconds(device.Takes(batch) * std::exp(noise(random))), kStart);
    }
    EXPECT_LT(MedianError(model, device, random), 0.2) << off;
  }
}

TEST(CostModel, OddBatchesDoNotUpsetIt) {
  const TrueDevice device{CpuRates(2)};
  CostModel model(CpuRates(2));
  std::mt19937 random(7);
  const Work work = WorkOf(Problem(4, 512));
  for (int i = 0; i < 100; ++i) model.Observe(work, FromSeconds(device.Takes(work)), kStart);
  const double before = Seconds(model.Predict(work));
  model.Observe(work, seconds(100), kStart);
  EXPECT_LT(Seconds(model.Predict(work)) / before, 1.15);
  // One in ten takes a hundred times as long, as where the machine is shared.
  for (int i = 0; i < 500; ++i) {
    const Work batch = WorkOf(RandomProblem(random));
    model.Observe(batch, FromSeconds(device.Takes(batch) * (i % 10 == 0 ? 100 : 1)), kStart);
  }
  EXPECT_LT(MedianError(model, device, random), 0.3);
}

TEST(CostModel, FollowsADeviceThatChanges) {
  CostModel model(GpuRates());
  const Work work = WorkOf(Problem(4, 512));
  for (const int64_t us : {500, 50, 800}) {
    for (int i = 0; i < 100; ++i) model.Observe(work, microseconds(us), kStart);
    EXPECT_NEAR(Seconds(model.Predict(work)) * 1e6, us, us * 0.05);
  }
}

TEST(CostModel, KeysLearnApart) {
  CostModel model(CpuRates(2));
  const Work f32 = WorkOf(Problem(4, 512));
  const Work bf16 = WorkOf(Problem(4, 512, 64, kernels::DType::kBF16));
  const Duration before = model.Predict(bf16);
  model.Observe(f32, milliseconds(50), kStart);
  EXPECT_NEAR(Seconds(model.Predict(f32)), 0.05, 0.005) << "the first of a key counts in full";
  EXPECT_EQ(model.Predict(bf16), before);
}

TEST(CostModel, IsNeverZeroAndNeverAbsurd) {
  CostModel model(CpuRates(2));
  EXPECT_EQ(model.Predict(Work()), microseconds(1));
  AttentionProblem none = Problem(4, 0);
  EXPECT_GE(model.Predict(WorkOf(none)), microseconds(1));
  AttentionProblem vast = Problem(1, int64_t{1} << 40);
  EXPECT_EQ(model.Predict(WorkOf(vast)), std::chrono::hours(24));
  const Work work = WorkOf(Problem(4, 512));
  model.Observe(work, Duration::zero(), kStart);
  model.Observe(Work(), seconds(1), kStart);
  const Duration untouched = CostModel(CpuRates(2)).Predict(work);
  EXPECT_EQ(model.Predict(work), untouched);
  for (int i = 0; i < 100; ++i) model.Observe(work, seconds(86400), kStart);
  EXPECT_LE(model.Predict(work), untouched * 100);
}

TEST(CostModel, HopelessIsWhatHalfOfThePredictionDoesNotFitInto) {
  CostModel model(CpuRates(2));
  const Work work = WorkOf(Problem(4, 512));
  for (int i = 0; i < CostModel::kSettled; ++i) {
    EXPECT_FALSE(IsHopeless(model, work, microseconds(1), kStart)) << "nothing is known for sure";
    model.Observe(work, milliseconds(40), kStart);
  }
  EXPECT_TRUE(IsHopeless(model, work, milliseconds(19), kStart));
  EXPECT_FALSE(IsHopeless(model, work, milliseconds(21), kStart));
  EXPECT_FALSE(IsHopeless(model, Work(), Duration::zero(), kStart));
  // Knowledge that nothing confirms is not held against anybody.
  EXPECT_TRUE(IsHopeless(model, work, milliseconds(1), kStart + CostModel::kFresh - seconds(1)));
  EXPECT_FALSE(IsHopeless(model, work, milliseconds(1), kStart + CostModel::kFresh));
}

// Small problems settle the first term; they say nothing of what a large one's FLOPs take.
TEST(CostModel, HopelessNeedsTheTermsThatItHangsOn) {
  CostModel model(CpuRates(1));
  const Work small = WorkOf(Problem(1, 2));
  const Work large = WorkOf(Problem(8, 4096));
  for (int i = 0; i < 100; ++i) model.Observe(small, microseconds(5), kStart);
  EXPECT_TRUE(IsHopeless(model, small, microseconds(1), kStart));
  EXPECT_FALSE(IsHopeless(model, large, microseconds(1), kStart));
  for (int i = 0; i < CostModel::kSettled; ++i) model.Observe(large, seconds(1), kStart);
  EXPECT_TRUE(IsHopeless(model, large, milliseconds(100), kStart));
  // Nor do large ones that ride along say much of small ones.
  EXPECT_FALSE(IsHopeless(model, small, milliseconds(1), kStart));
}

}  // namespace
}  // namespace attnd::server
