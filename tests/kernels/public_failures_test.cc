// Ways in which other attention kernels were publicly seen to fail, each as a test of its whole
// kind, named after what it protects: masks, numbers and empty rows. Sizes and offsets are in
// public_failures_sizes_test.cc.
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cases/memory.h"
#include "tests/cases/run.h"
#include "tests/cases/table.h"
#include "tests/kernels/check.h"

namespace attnd::testing {
namespace {

using kernels::AttentionProblem;
using kernels::AttentionTask;
using kernels::Causal;
using kernels::DType;
using kernels::kUnbounded;
using kernels::MaskSpec;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr MaskSpec Window(int64_t left, int64_t right) {
  return {.causal = {}, .window = {left, right}};
}

class PublicFailures : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    backend_ = MakeBackend(GetParam(), 2);
    ASSERT_NE(backend_, nullptr);
  }

  // In all three placements, each with numbers of its own. A fresh name: results are cached by it.
  void Check(Case c, EdgePoison edge = EdgePoison::kNone) {
    CaseGroup group{.name = ::testing::UnitTest::GetInstance()->current_test_info()->name()};
    Add(group, std::move(c));
    for (Placement placement : {Placement::kSnug, Placement::kOddNaN, Placement::kOddLarge}) {
      const auto seed = static_cast<uint64_t>(placement) + 20;
      CheckCase(*backend_, group.cases[0], {.seed = seed, .placement = placement, .edge = edge});
    }
  }

  std::unique_ptr<CaseMemory> RunCase(const Case& c, const MemoryOptions& options = {}) {
    auto memory = std::make_unique<CaseMemory>(c, options);
    const absl::Status status = RunTasks(*backend_, memory->Tasks(*backend_));
    EXPECT_TRUE(status.ok()) << status;
    return memory;
  }

  // How many keys each row averages over, found from outside: all scores are equal and V is the
  // identity, so that O[i][j] is 1 / count for visible keys and 0 for hidden ones. "-" stands for a
  // hidden key, "x" for a visible one; one string a row.
  std::vector<std::string> SeenKeys(DType dtype, const MaskSpec& mask, Lens lens) {
    const Case c{.dtype = dtype,
                 .lens = {lens},
                 .head_dim = lens.kv,
                 .mask = mask,
                 .distribution = Distribution::kConstant};
    CaseMemory memory(c, {.placement = Placement::kOddNaN, .poison_hidden_keys = false});
    memory.v().SetRegion(0, 0);
    for (int64_t key = 0; key < lens.kv; ++key) memory.v().Set(0, 0, 0, key, key, 1);
    memory.FreezeInputs();
    EXPECT_TRUE(RunTasks(*backend_, memory.Tasks(*backend_)).ok());
    const std::vector<double> o = memory.Output(0);
    std::vector<std::string> seen;
    for (int64_t row = 0; row < lens.q; ++row) {
      std::string keys;
      for (int64_t key = 0; key < lens.kv; ++key) keys += o[row * lens.kv + key] > 0 ? 'x' : '-';
      seen.push_back(keys);
    }
    return seen;
  }

  std::unique_ptr<kernels::Backend> backend_;
};

using Rows = std::vector<std::string>;

TEST_P(PublicFailures, K1_RowsWithoutKeysAreZeroAndNeverNaN) {
  for (DType dtype : kDTypes) {
    for (const MaskSpec& mask : {kCausal, Window(0, 0), Window(5, 2), Window(kUnbounded, 0)}) {
      // Single rows, part of a tile, whole tiles.
      for (const Lens& lens : {Lens{9, 8}, Lens{70, 40}, Lens{300, 20}}) {
        Check({.dtype = dtype, .q_heads = 2, .lens = {lens}, .mask = mask});
        const Case c{.dtype = dtype, .lens = {lens}, .mask = mask};
        for (double x : RunCase(c)->Output(0)) ASSERT_TRUE(std::isfinite(x)) << x;
      }
    }
  }
}

TEST_P(PublicFailures, K3_HiddenFirstTileBeforeScoresFarBelowZero) {
  for (DType dtype : kDTypes) {
    for (const MaskSpec& mask :
         {kCausal, Window(64, 0), Window(20, 20),
          MaskSpec{.causal = {Causal::kBottomRight}, .window = {100, kUnbounded}}}) {
      Check({.dtype = dtype,
             .q_heads = 14,
             .kv_heads = 2,
             .lens = {{88, 448}},
             .mask = mask,
             .distribution = Distribution::kFarBelowZero});
    }
  }
}

TEST_P(PublicFailures, K5_BottomRightCausalAboveTheDiagonalIsEmpty) {
  for (DType dtype : kDTypes) {
    for (const Lens& lens : {Lens{5, 2}, Lens{65, 64}, Lens{200, 70}, Lens{333, 1}}) {
      const Case c{.dtype = dtype, .q_heads = 2, .kv_heads = 2, .lens = {lens}, .mask = kCausal};
      Check(c);
      const auto memory = RunCase(c);
      const std::vector<double> lse = memory->Lse(0);
      for (int64_t row = 0; row < lens.q; ++row) {
        EXPECT_EQ(lse[row] == -kInf, row < lens.q - lens.kv) << "row " << row;
      }
    }
  }
}

TEST_P(PublicFailures, K6_ANaNInAHiddenKeyChangesNoBit) {
  for (DType dtype : kDTypes) {
    const struct {
      MaskSpec mask;
      Lens lens;
    } all[] = {{kCausalTopLeft, {40, 41}},  // the last key alone is hidden
               {kCausalTopLeft, {40, 200}},
               {Window(0, 0), {30, 100}},
               {Window(8, 8), {1, 64}}};
    for (const auto& [mask, lens] : all) {
      const Case c{.dtype = dtype, .q_heads = 4, .kv_heads = 2, .lens = {lens}, .mask = mask};
      const auto clean = RunCase(c, {.poison_hidden_keys = false});
      const auto poisoned = RunCase(c, {.poison_hidden_keys = true});
      EXPECT_TRUE(clean->OutputBits(0) == poisoned->OutputBits(0)) << MaskName(ProblemsOf(c)[0]);
    }
    // Hidden from some rows of a tile only.
    for (const MaskSpec& mask : {kCausal, Window(9, 4)}) {
      const Case c{.dtype = dtype, .q_heads = 4, .kv_heads = 2, .lens = {{50, 90}}, .mask = mask};
      Check(c, EdgePoison::kValues);
      Check(c, EdgePoison::kKeys);
    }
  }
}

// Keys end anywhere in a tile, and NaN tokens of a packed neighbour follow directly.
TEST_P(PublicFailures, K8_NaNBehindTheLastKeyIsNeverMultiplied) {
  for (DType dtype : kDTypes) {
    for (int64_t kv_len = 1; kv_len <= 70; kv_len += kv_len < 18 ? 1 : 7) {
      const Case c{.dtype = dtype,
                   .layout = Layout::kTHD,
                   .q_heads = 2,
                   .kv_heads = 1,
                   .lens = {{7, kv_len}, {64, 300}}};
      SCOPED_TRACE("kv_len " + std::to_string(kv_len));
      const auto whole = RunCase(c);
      const auto beside_nan = RunCase(c, {.only_sequence = 0});
      EXPECT_EQ(beside_nan->Check(), "");
      EXPECT_TRUE(whole->OutputBits(0) == beside_nan->OutputBits(0));
      for (double x : beside_nan->Output(0)) ASSERT_TRUE(std::isfinite(x));
    }
  }
}

// The scaled maximum must round as the scaled score does, or exp(x - max) is anything.
TEST_P(PublicFailures, K10_HugeEqualScoresGiveTheMeanOfV) {
  const struct {
    DType dtype;
    float value;
  } all[] = {
      {DType::kBF16, 133120}, {DType::kF16, 60000}, {DType::kF32, 133120}, {DType::kF32, 1e10f}};
  for (const auto& [dtype, value] : all) {
    for (int64_t length : {1, 3, 100, 300}) {
      const Case c{.dtype = dtype, .lens = {{length, length}}, .mask = kCausal};
      CaseMemory memory(c, {});
      for (Buffer* buffer : {&memory.q(), &memory.k(), &memory.v()}) buffer->SetRegion(0, value);
      memory.FreezeInputs();
      ASSERT_TRUE(RunTasks(*backend_, memory.Tasks(*backend_)).ok());
      for (double x : memory.Output(0)) {
        // Halves, and a single key, give it exactly; in fp32 the sum of a mean is rounded.
        const bool exact = dtype != DType::kF32 || length == 1;
        ASSERT_NEAR(x, value, exact ? 0 : value * 2e-6) << DTypeName(dtype) << " " << length;
      }
    }
  }
}

TEST_P(PublicFailures, K13_CausalAlignmentsDifferWhenQueriesOutnumberKeys) {
  for (DType dtype : kDTypes) {
    Case c{.dtype = dtype, .lens = {{2048, 1024}}, .head_dim = 32, .mask = kCausal};
    Check(c);
    const auto bottom_right = RunCase(c);
    const std::vector<double> o = bottom_right->Output(0);
    for (int64_t i = 0; i < 1024 * 32; ++i) ASSERT_EQ(o[i], 0) << i;
    for (int64_t row = 0; row < 2048; ++row) {
      EXPECT_EQ(bottom_right->Lse(0)[row] == -kInf, row < 1024) << row;
    }
    c.mask = kCausalTopLeft;
    Check(c);
    const auto top_left = RunCase(c);
    for (double lse : top_left->Lse(0)) ASSERT_TRUE(std::isfinite(lse));
    const std::vector<float> v = top_left->ReadInputs(0).v;
    for (int64_t d = 0; d < 32; ++d) EXPECT_EQ(top_left->Output(0)[d], v[d]);
  }
}

TEST_P(PublicFailures, K14_CausalAlignmentsDifferWhenKeysOutnumberQueries) {
  for (DType dtype : kDTypes) {
    EXPECT_EQ(SeenKeys(dtype, kCausalTopLeft, {2, 5}), (Rows{"x----", "xx---"}));
    EXPECT_EQ(SeenKeys(dtype, kCausal, {2, 5}), (Rows{"xxxx-", "xxxxx"}));
    EXPECT_EQ(SeenKeys(dtype, kCausalTopLeft, {3, 3}), SeenKeys(dtype, kCausal, {3, 3}));
    EXPECT_EQ(SeenKeys(dtype, kCausalTopLeft, {4, 2}), (Rows{"x-", "xx", "xx", "xx"}));
    EXPECT_EQ(SeenKeys(dtype, kCausal, {4, 2}), (Rows{"--", "--", "x-", "xx"}));
  }
}

TEST_P(PublicFailures, K16_NoKeysGiveZeroAndMinusInfinity) {
  for (DType dtype : kDTypes) {
    for (const MaskSpec& mask : {kFull, kCausal, Window(3, 3)}) {
      const Case c{
          .dtype = dtype, .batch = 2, .q_heads = 4, .kv_heads = 2, .lens = {{37, 0}}, .mask = mask};
      Check(c);
      CaseMemory memory(c, {});
      std::vector<AttentionTask> tasks = memory.Tasks(*backend_);
      tasks[0].args.k = tasks[0].args.v = nullptr;  // nothing to read
      ASSERT_TRUE(RunTasks(*backend_, tasks).ok());
      EXPECT_EQ(memory.Check(), "");
      for (double x : memory.Output(0)) ASSERT_EQ(x, 0);
      for (double x : memory.Lse(0)) ASSERT_EQ(x, -kInf);
    }
  }
}

TEST_P(PublicFailures, K17_NoBatchOrNoRowsIsAnEmptyResult) {
  for (DType dtype : kDTypes) {
    for (const MaskSpec& mask : {kFull, kCausal, Window(3, 3)}) {
      Check({.dtype = dtype, .batch = 0, .q_heads = 2, .lens = {{5, 5}}, .mask = mask});
      Check({.dtype = dtype, .batch = 2, .q_heads = 2, .lens = {{0, 5}}, .mask = mask});
      Check({.dtype = dtype,
             .batch = 0,
             .q_heads = 0,
             .kv_heads = 0,
             .lens = {{0, 0}},
             .mask = mask});
    }
    // With no memory at all, alone and as the first of several.
    const Case nothing{.dtype = dtype, .batch = 0, .lens = {{5, 5}}};
    const AttentionProblem p = ProblemsOf(nothing)[0];
    const AttentionTask task{p, backend_->Plan(p), {}};
    EXPECT_TRUE(RunTasks(*backend_, {&task, 1}).ok());
    EXPECT_TRUE(RunTasks(*backend_, {}).ok());
    const CaseMemory memory({.dtype = dtype, .lens = {{9, 9}}}, {});
    std::vector<AttentionTask> tasks = memory.Tasks(*backend_);
    tasks.insert(tasks.begin(), task);
    EXPECT_TRUE(RunTasks(*backend_, tasks).ok());
    EXPECT_EQ(memory.Check(), "");
  }
}

// A row in a tile with others that see keys, a tile without any key, no keys at all.
TEST_P(PublicFailures, K21_LseOfAnEmptyRowIsMinusInfinityOnEveryPath) {
  for (DType dtype : kDTypes) {
    for (bool alibi : {false, true}) {
      for (float softcap : {0.0f, 10.0f}) {
        const struct {
          MaskSpec mask;
          Lens lens;
        } all[] = {
            {kCausal, {20, 19}}, {kCausal, {700, 20}}, {Window(2, 2), {300, 30}}, {kFull, {5, 0}}};
        for (const auto& [mask, lens] : all) {
          const Case c{
              .dtype = dtype, .lens = {lens}, .mask = mask, .softcap = softcap, .alibi = alibi};
          const auto memory = RunCase(c);
          const AttentionProblem p = ProblemsOf(c)[0];
          for (int64_t row = 0; row < lens.q; ++row) {
            const bool empty = p.mask.Resolve(lens.q, lens.kv).RowKeys(row, lens.kv).empty();
            ASSERT_EQ(memory->Lse(0)[row] == -kInf, empty) << ToString(p) << " row " << row;
          }
        }
      }
    }
  }
}

TEST_P(PublicFailures, K23_AWindowOfLeftWHoldsWPlusOneKeys) {
  for (DType dtype : kDTypes) {
    EXPECT_EQ(SeenKeys(dtype, Window(2, 0), {5, 5}),
              (Rows{"x----", "xx---", "xxx--", "-xxx-", "--xxx"}));
    EXPECT_EQ(SeenKeys(dtype, Window(0, 0), {3, 3}), (Rows{"x--", "-x-", "--x"}));
    EXPECT_EQ(SeenKeys(dtype, Window(1, 1), {4, 4}), (Rows{"xx--", "xxx-", "-xxx", "--xx"}));
    EXPECT_EQ(SeenKeys(dtype, Window(kUnbounded, 1), {3, 3}), (Rows{"xx-", "xxx", "xxx"}));
    // Bottom-right alignment.
    EXPECT_EQ(SeenKeys(dtype, Window(1, 0), {2, 5}), (Rows{"--xx-", "---xx"}));
    EXPECT_EQ(SeenKeys(dtype, Window(1, 0), {4, 2}), (Rows{"--", "--", "x-", "xx"}));
    // Together with causal, whatever is stricter.
    const MaskSpec both = {.causal = {Causal::kBottomRight}, .window = {1, 3}};
    EXPECT_EQ(SeenKeys(dtype, both, {3, 3}), (Rows{"x--", "xx-", "-xx"}));
  }
}

TEST_P(PublicFailures, K28_SoftcapComesBeforeTheMask) {
  for (DType dtype : kDTypes) {
    for (float softcap : {1.0f, 0.1f, 50.0f}) {
      for (Distribution distribution : {Distribution::kNormal, Distribution::kLarge}) {
        const Case c{.dtype = dtype,
                     .q_heads = 2,
                     .lens = {{64, 64}},
                     .mask = kCausal,
                     .softcap = softcap,
                     .distribution = distribution};
        Check(c);
        // Row 0 sees key 0 alone. A capped mask would let it see all.
        const auto memory = RunCase(c);
        const std::vector<float> v = memory->ReadInputs(0).v;
        for (int64_t d = 0; d < 64; ++d) ASSERT_EQ(memory->Output(0)[d], v[d]);
      }
    }
  }
}

// Slopes that neither half can hold, and an LSE that would show their rounding.
TEST_P(PublicFailures, K29_AlibiSlopesStayFp32BesideHalves) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (const MaskSpec& mask : {kFull, kCausal}) {
      Check({.dtype = dtype,
             .q_heads = 12,
             .kv_heads = 4,
             .lens = {{90, 250}},
             .mask = mask,
             .alibi = true});
    }
  }
}

TEST_P(PublicFailures, K31_NoPlanReusesTheFirstScale) {
  for (DType dtype : kDTypes) {
    Case c{.dtype = dtype, .q_heads = 2, .lens = {{70, 70}}, .head_dim = 128};
    const float scale = kernels::DefaultScale(128);
    std::vector<std::unique_ptr<CaseMemory>> memories;
    std::vector<AttentionTask> tasks;
    for (float factor : {1.0f, 3.0f, 1.0f, 0.1f}) {
      c.scale = factor * scale;
      Check(c);  // one after the other, on one backend
      memories.push_back(std::make_unique<CaseMemory>(c, MemoryOptions{}));
      tasks.push_back(memories.back()->Tasks(*backend_)[0]);
    }
    ASSERT_TRUE(RunTasks(*backend_, tasks).ok());  // and all in one call
    EXPECT_TRUE(memories[0]->OutputBits(0) == memories[2]->OutputBits(0));
    for (size_t i : {0, 1, 3}) {
      c.scale = memories[i]->problems()[0].scale;
      EXPECT_TRUE(RunCase(c)->OutputBits(0) == memories[i]->OutputBits(0)) << i;
    }
    EXPECT_FALSE(memories[0]->OutputBits(0) == memories[1]->OutputBits(0));
  }
}

INSTANTIATE_TEST_SUITE_P(All, PublicFailures, ::testing::ValuesIn(AvailableBackends()),
                         [](const auto& info) { return TestName(info.param); });

}  // namespace
}  // namespace attnd::testing
