// The reference against an implementation that shares nothing with it, and by hand.
#include "kernels/reference/reference.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cases/memory.h"
#include "tests/cases/naive.h"
#include "tests/cases/table.h"

namespace attnd::testing {
namespace {

using kernels::AttentionArgs;
using kernels::AttentionProblem;
using kernels::DType;
using kernels::RelativeError;
using kernels::RowId;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Two orders of summation in fp64, of up to 20001 terms.
constexpr double kFp64Bound = 1e-12;

TEST(Reference, EqualsTheNaiveFormulasOnEveryCase) {
  for (const CaseGroup& group : CaseGroups()) {
    if (group.is_bench) continue;
    for (const Case& c : group.cases) {
      SCOPED_TRACE(c.name);
      const CaseMemory memory(c, {.seed = 7, .placement = Placement::kOddNaN});
      for (size_t i = 0; i < memory.problems().size(); ++i) {
        const AttentionProblem& p = memory.problems()[i];
        const NaiveResult naive = NaiveAttention(p, memory.args()[i], Rounding::kNone);
        std::vector<double> o(naive.o.size());
        std::vector<double> lse(naive.lse.size());
        ReferenceAttention(p, memory.args()[i], o.data(), lse.data());
        EXPECT_LE(RelativeError(o, naive.o), kFp64Bound);
        EXPECT_LE(RelativeError(lse, naive.lse), kFp64Bound);
      }
    }
  }
}

// One row, two keys, head_dim 1, fp32: small enough to know the answer.
struct ByHand {
  float q = 1;
  float k[2] = {0, 0};
  float v[2] = {1, 3};
  AttentionProblem problem{.batch = 1,
                           .q_heads = 1,
                           .kv_heads = 1,
                           .q_len = 1,
                           .kv_len = 2,
                           .head_dim = 1,
                           .mask = {},
                           .scale = 1};
  float slope = 0;
  double o = 0;
  double lse = 0;

  void Run() {
    const AttentionArgs args{.q = &q,
                             .k = k,
                             .v = v,
                             .q_strides = {1, 1, 1},
                             .k_strides = {2, 2, 1},
                             .v_strides = {2, 2, 1},
                             .o_strides = {},
                             .alibi_slopes = &slope};
    ReferenceAttention(problem, args, &o, &lse);
  }
};

TEST(Reference, EqualScoresGiveTheMean) {
  ByHand x;
  x.Run();
  EXPECT_DOUBLE_EQ(x.o, 2);
  EXPECT_DOUBLE_EQ(x.lse, std::log(2.0));
}

TEST(Reference, WeightsAreTheSoftmaxOfScaledScores) {
  ByHand x;
  x.problem.scale = 0.5f;
  x.k[1] = 2 * std::log(3.0f);  // weights 1 : 3
  x.Run();
  EXPECT_NEAR(x.o, (1 * 1 + 3 * 3) / 4.0, 1e-6);
  EXPECT_NEAR(x.lse, std::log(4.0), 1e-6);
}

TEST(Reference, SoftcapComesBeforeAlibi) {
  ByHand x;
  x.q = 1000;
  x.k[0] = x.k[1] = 1;  // both capped to 5
  x.problem.softcap = 5;
  x.problem.alibi = true;
  x.slope = 1;  // key 0 is one key away from the diagonal, key 1 is on it
  x.Run();
  const double weight = std::exp(-1.0);
  EXPECT_NEAR(x.o, (weight * 1 + 3) / (weight + 1), 1e-12);
  EXPECT_NEAR(x.lse, 5 + std::log(weight + 1), 1e-12);
}

TEST(Reference, ARowWhoseScoresAreAllMinusInfinityIsEmpty) {
  ByHand x;
  x.k[0] = x.k[1] = -std::numeric_limits<float>::infinity();
  x.Run();
  EXPECT_EQ(x.o, 0);
  EXPECT_EQ(x.lse, -kInf);
}

TEST(Reference, AVisibleNaNReachesTheRow) {
  ByHand x;
  x.k[1] = std::numeric_limits<float>::quiet_NaN();
  x.Run();
  EXPECT_TRUE(std::isnan(x.o));
  EXPECT_TRUE(std::isnan(x.lse));
}

TEST(Reference, ChosenRowsEqualTheWhole) {
  const Case c{.name = "rows",
               .dtype = DType::kBF16,
               .batch = 2,
               .q_heads = 4,
               .kv_heads = 2,
               .lens = {{20, 30}},
               .head_dim = 16,
               .mask = kCausal};
  const CaseMemory memory(c, {.placement = Placement::kOddNaN});
  const AttentionProblem& p = memory.problems()[0];
  std::vector<double> o(2 * 4 * 20 * 16);
  std::vector<double> lse(2 * 4 * 20);
  ReferenceAttention(p, memory.args()[0], o.data(), lse.data());
  const std::vector<RowId> rows = {{1, 3, 19}, {0, 0, 0}, {1, 3, 2}, {0, 2, 7}};
  std::vector<double> rows_o(rows.size() * 16);
  std::vector<double> rows_lse(rows.size());
  ReferenceRows(p, memory.args()[0], rows, rows_o.data(), rows_lse.data());
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t index = (rows[i].batch * 4 + rows[i].q_head) * 20 + rows[i].row;
    EXPECT_EQ(rows_lse[i], lse[index]);
    for (int64_t d = 0; d < 16; ++d) EXPECT_EQ(rows_o[i * 16 + d], o[index * 16 + d]);
  }
}

TEST(Reference, IsABackendOfItsName) {
  const auto backend = kernels::CreateReference({});
  EXPECT_EQ(backend->Name(), "reference");
  const Case c{.dtype = DType::kF16, .lens = {{9, 9}}, .head_dim = 100, .mask = kCausal};
  EXPECT_EQ(backend->Plan(ProblemsOf(c)[0]).kernel, "attn_fwd_f16_d128_causal_reference");
}

TEST(RelativeErrorTest, IsTheNormOfTheDifferenceOverTheNorm) {
  EXPECT_DOUBLE_EQ(RelativeError({3, 4.5}, {3, 4}), 0.1);
  EXPECT_EQ(RelativeError({1, 2}, {1, 2}), 0);
}

TEST(RelativeErrorTest, NothingAndZeroAgainstZeroIsNoError) {
  EXPECT_EQ(RelativeError({}, {}), 0);
  EXPECT_EQ(RelativeError({0, 0}, {0, 0}), 0);
  EXPECT_EQ(RelativeError({0, 1e-30}, {0, 0}), kInf);
}

TEST(RelativeErrorTest, ComparesPositionsOfNaNAndInfinity) {
  EXPECT_EQ(RelativeError({kNaN, kInf, -kInf, 1}, {kNaN, kInf, -kInf, 1}), 0);
  EXPECT_EQ(RelativeError({kNaN, 1}, {1, kNaN}), kInf);
  EXPECT_EQ(RelativeError({kInf}, {-kInf}), kInf);
  EXPECT_EQ(RelativeError({kNaN}, {kInf}), kInf);
  EXPECT_EQ(RelativeError({1e300}, {kInf}), kInf);
  EXPECT_EQ(RelativeError({1, 2}, {1}), kInf);
}

}  // namespace
}  // namespace attnd::testing
