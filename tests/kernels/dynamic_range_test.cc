// Mostly fp32 numbers, far from N(0,1): some dimensions, keys or tensors much larger or smaller
// than the rest, zeros, infinities and NaN. A kernel that computes fp32 from narrower parts is
// tempted to lose them.
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/reference/reference.h"
#include "tests/cases/memory.h"
#include "tests/cases/naive.h"
#include "tests/cases/run.h"
#include "tests/cases/table.h"
#include "tests/kernels/check.h"

namespace attnd::testing {
namespace {

using kernels::DType;

constexpr double kF32Bound = 2e-6;
constexpr double kBF16Bound = 3.5e-3;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kHeads = 2;
constexpr Lens kLens{150, 200};

class DynamicRange : public ::testing::TestWithParam<std::string> {
 protected:
  using Place = std::function<void(Values&)>;

  void SetUp() override {
    backend_ = MakeBackend(GetParam(), 2);
    ASSERT_NE(backend_, nullptr);
  }

  // Draws N(0,1), lets `place` change the numbers, and compares with fp64, rows in two parts: those
  // before `split_row` and the others, so that large rows do not hide what small ones lose.
  void Check(const kernels::MaskSpec& mask, const Place& place, int64_t split_row = 0) {
    for (int64_t head_dim : {40, 64, 96, 128, 192, 256}) {
      const Case c{.q_heads = kHeads,
                   .kv_heads = kHeads,
                   .lens = {kLens},
                   .head_dim = head_dim,
                   .mask = mask};
      SCOPED_TRACE(GetParam() + " head_dim " + std::to_string(head_dim));
      CaseMemory memory(c, {.poison_hidden_keys = false});
      Values values = memory.ReadInputs(0);
      place(values);
      memory.q().SetRegion(0, values.q);
      memory.k().SetRegion(0, values.k);
      memory.v().SetRegion(0, values.v);
      memory.FreezeInputs();
      ASSERT_TRUE(RunTasks(*backend_, memory.Tasks(*backend_)).ok());
      Compare(memory, split_row);
    }
  }

  std::unique_ptr<kernels::Backend> backend_;

  // Numbers where fp64 has numbers, near them, and NaN where that has NaN.
  static void ExpectSameKinds(const CaseMemory& memory) {
    const std::vector<double> got = memory.Output(0);
    std::vector<double> want(got.size()), want_lse(memory.Lse(0).size());
    ReferenceAttention(memory.problems()[0], memory.args()[0], want.data(), want_lse.data());
    std::vector<double> numbers[2];
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(std::isnan(got[i]), std::isnan(want[i])) << "element " << i;
      if (std::isnan(want[i])) continue;
      numbers[0].push_back(got[i]);
      numbers[1].push_back(want[i]);
    }
    if (!numbers[0].empty()) {
      EXPECT_LE(kernels::RelativeError(numbers[0], numbers[1]), kBF16Bound);
    }
  }

 private:
  static void Compare(const CaseMemory& memory, int64_t split_row) {
    const kernels::AttentionProblem& p = memory.problems()[0];
    const std::vector<double> got = memory.Output(0);
    const std::vector<double> got_lse = memory.Lse(0);
    std::vector<double> want(got.size()), want_lse(got_lse.size());
    ReferenceAttention(p, memory.args()[0], want.data(), want_lse.data());
    double max_score = NaiveAttention(p, memory.args()[0], Rounding::kNone).max_abs_score;
    if (!std::isfinite(max_score)) max_score = 0;
    const double bound = kF32Bound * std::max(1.0, max_score / 4);
    std::vector<double> got_part[2], want_part[2];
    for (size_t i = 0; i < got.size(); ++i) {
      const int part = static_cast<int64_t>(i) / p.head_dim % p.q_len < split_row ? 0 : 1;
      got_part[part].push_back(got[i]);
      want_part[part].push_back(want[i]);
    }
    for (int part : {0, 1}) {
      EXPECT_LE(kernels::RelativeError(got_part[part], want_part[part]), bound) << "part " << part;
    }
    for (size_t row = 0; row < want_lse.size(); ++row) {
      if (std::isfinite(want_lse[row])) {
        ASSERT_NEAR(got_lse[row], want_lse[row], LseBound(std::max(max_score, want_lse[row])));
      } else {
        ASSERT_TRUE(got_lse[row] == want_lse[row] ||
                    (std::isnan(got_lse[row]) && std::isnan(want_lse[row])))
            << "row " << row << ": " << got_lse[row] << ", not " << want_lse[row];
      }
    }
  }
};

// Element d of row `row` of every head.
void ForRow(std::vector<float>& tensor, int64_t len, int64_t row,
            const std::function<void(float& x, int64_t d)>& visit) {
  const auto head_dim = static_cast<int64_t>(tensor.size()) / (kHeads * len);
  for (int64_t head = 0; head < kHeads; ++head) {
    for (int64_t d = 0; d < head_dim; ++d) visit(tensor[(head * len + row) * head_dim + d], d);
  }
}
void Scale(std::vector<float>& tensor, float factor) {
  for (float& x : tensor) x *= factor;
}

TEST_P(DynamicRange, OutlierDimensionsOfQAndK) {
  for (bool same : {false, true}) {
    Check(kCausal, [&](Values& values) {
      for (int64_t row = 0; row < kLens.q; ++row) {
        ForRow(values.q, kLens.q, row, [](float& x, int64_t d) { x *= d % 19 == 3 ? 1024 : 1; });
      }
      for (int64_t row = 0; row < kLens.kv; ++row) {
        ForRow(values.k, kLens.kv, row,
               [&](float& x, int64_t d) { x *= d % 19 == (same ? 3 : 7) ? (same ? 1 : 1024) : 1; });
      }
    });
  }
}

// A key that a score of -1e4 hides, and one that is seen: by the rows from 30 on alone.
TEST_P(DynamicRange, OutlierKeysOfV) {
  constexpr int64_t kKey = 80;
  constexpr int64_t kFirstRow = kKey - (kLens.kv - kLens.q);
  for (bool seen : {false, true}) {
    for (float factor : {1e9f, 1e-9f}) {
      const auto place = [&](Values& values) {
        ForRow(values.v, kLens.kv, kKey, [&](float& x, int64_t) { x *= factor; });
        if (seen) return;
        for (int64_t row = 0; row < kLens.q; ++row) {
          ForRow(values.q, kLens.q, row, [](float& x, int64_t d) { x = d == 0 ? 1000 : x; });
        }
        for (int64_t row = 0; row < kLens.kv; ++row) {
          ForRow(values.k, kLens.kv, row, [&](float& x, int64_t d) {
            if (d == 0) x = row == kKey ? -160 : 0;
          });
        }
      };
      Check(kCausal, place, kFirstRow);
      Check(kFull, place);
    }
  }
}

// Probability and size make up for each other: exp(-20) of a V that is 5e8 times the others.
TEST_P(DynamicRange, ALargeVOfAnUnlikelyKeyCounts) {
  Check(kFull, [](Values& values) {
    Scale(values.k, 0.01f);
    const auto head_dim = static_cast<int64_t>(values.q.size()) / (kHeads * kLens.q);
    for (int64_t row = 0; row < kLens.q; ++row) {
      ForRow(values.q, kLens.q, row, [](float& x, int64_t d) { x = d == 0 ? 1 : x; });
    }
    for (int64_t row = 0; row < kLens.kv; ++row) {
      ForRow(values.k, kLens.kv, row, [&](float& x, int64_t d) {
        if (d == 0) x = row == 70 ? -20 * std::sqrt(static_cast<float>(head_dim)) : 0;
      });
    }
    ForRow(values.v, kLens.kv, 70, [](float& x, int64_t) { x *= 5e8f; });
  });
}

TEST_P(DynamicRange, WholeTensorsFarFromOne) {
  for (float factor : {1e-30f, 1e-12f, 1e12f, 1e30f}) {
    Check(kCausal, [&](Values& values) {
      Scale(values.q, factor);
      Scale(values.k, 1 / factor);
    });
    Check(kCausal, [&](Values& values) { Scale(values.v, factor); });
  }
}

TEST_P(DynamicRange, ZeroRows) {
  Check(kCausal, [](Values& values) {
    for (int64_t row : {0, 1, 77}) {
      ForRow(values.q, kLens.q, row, [](float& x, int64_t) { x = 0; });
      ForRow(values.k, kLens.kv, row + 9, [](float& x, int64_t) { x = 0; });
      ForRow(values.v, kLens.kv, row + 50, [](float& x, int64_t) { x = 0; });
    }
  });
  Check(kFull, [](Values& values) {
    for (auto* tensor : {&values.q, &values.k, &values.v}) Scale(*tensor, 0);
    values.v[0] = 1;
  });
}

// Scores of +-infinity or NaN, in the places where fp64 has them: infinity times zero, two of
// opposite signs, a NaN beside an infinity; with and without a mask.
TEST_P(DynamicRange, InfinitiesAndNaNInQAndK) {
  for (const kernels::MaskSpec& mask : {kFull, kCausal}) {
    Check(mask, [](Values& values) {
      const auto set = [&](std::vector<float>& tensor, int64_t len, int64_t row, int64_t d,
                           float value) {
        ForRow(tensor, len, row, [&](float& x, int64_t at) { x = at == d ? value : x; });
      };
      set(values.q, kLens.q, 20, 3, kInf);
      set(values.q, kLens.q, 21, 3, kNaN);
      set(values.q, kLens.q, 21, 4, kInf);
      set(values.q, kLens.q, 40, 5, 0);
      // A key that most rows see with either sign, one that only the last rows may see.
      for (int64_t row = 0; row < kLens.q; ++row) {
        if (row != 20 && row != 21) set(values.q, kLens.q, row, 5, row % 3 == 0 ? -1 : 1e-30f);
      }
      set(values.k, kLens.kv, 60, 5, -kInf);
      set(values.k, kLens.kv, 190, 5, kInf);
      set(values.k, kLens.kv, 195, 6, kNaN);
    });
  }
}

TEST_P(DynamicRange, InfinitiesAndNaNInV) {
  for (const kernels::MaskSpec& mask : {kFull, kCausal}) {
    Check(mask, [](Values& values) {
      ForRow(values.v, kLens.kv, 100, [](float& x, int64_t d) { x = d == 1 ? kNaN : x; });
      ForRow(values.v, kLens.kv, 120, [](float& x, int64_t d) { x = d == 2 ? kInf : x; });
      ForRow(values.v, kLens.kv, 130, [](float& x, int64_t d) { x = d == 3 ? -kInf : x; });
      ForRow(values.v, kLens.kv, 170, [](float& x, int64_t d) { x = d == 2 ? -kInf : x; });
    });
  }
}

// Halves, and so many keys that most of them are seen by all rows of a block: those may go a way
// on which weights are not looked at one by one.
TEST_P(DynamicRange, NaNAndInfinityAmongManyKeysOfHalves) {
  constexpr Lens kLong{64, 1300};
  const auto set = [](std::vector<float>& tensor, int64_t len, int64_t row, float value) {
    ForRow(tensor, len, row, [value](float& x, int64_t d) { x = d == 3 ? value : x; });
  };
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int64_t head_dim : {64, 128}) {
      for (const float value : {kNaN, kInf, -kInf}) {
        for (const bool of_k : {false, true}) {
          const Case c{.dtype = dtype,
                       .q_heads = kHeads,
                       .kv_heads = kHeads,
                       .lens = {kLong},
                       .head_dim = head_dim,
                       .mask = kFull};
          SCOPED_TRACE(::testing::Message() << GetParam() << " head_dim " << head_dim << ": "
                                            << value << (of_k ? " in K" : " in Q"));
          CaseMemory memory(c, {.poison_hidden_keys = false});
          Values values = memory.ReadInputs(0);
          of_k ? set(values.k, kLong.kv, 700, value) : set(values.q, kLong.q, 21, value);
          memory.q().SetRegion(0, values.q);
          memory.k().SetRegion(0, values.k);
          memory.FreezeInputs();
          ASSERT_TRUE(RunTasks(*backend_, memory.Tasks(*backend_)).ok());
          ExpectSameKinds(memory);
        }
      }
    }
  }
}

TEST_P(DynamicRange, TheOnlyKeyOfARowGivesItsVToTheBit) {
  for (int64_t head_dim : {7, 40, 64, 96, 128, 192, 256}) {
    const Case c{.q_heads = kHeads,
                 .kv_heads = kHeads,
                 .lens = {{90, 90}},
                 .head_dim = head_dim,
                 .mask = {.causal = {}, .window = {0, 0}}};
    CaseMemory memory(c, {.placement = Placement::kOddNaN});
    ASSERT_TRUE(RunTasks(*backend_, memory.Tasks(*backend_)).ok());
    const std::vector<float> v = memory.ReadInputs(0).v;
    const std::vector<double> o = memory.Output(0);
    for (size_t i = 0; i < o.size(); ++i) ASSERT_EQ(o[i], v[i]) << "head_dim " << head_dim;
  }
}

INSTANTIATE_TEST_SUITE_P(All, DynamicRange, ::testing::ValuesIn(AvailableBackends()),
                         [](const auto& info) { return TestName(info.param); });

}  // namespace
}  // namespace attnd::testing
