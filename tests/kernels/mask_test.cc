// The band arithmetic that every kernel relies on, against the definition key by key.
#include "kernels/mask.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace attnd::kernels {
namespace {

constexpr int64_t kBounds[] = {0, 1, 2, 7, kUnbounded};
constexpr Causal kAlignments[] = {Causal::kNone, Causal::kTopLeft, Causal::kBottomRight};

// As proto/attnd/v1/attnd.proto has it.
bool IsVisible(const MaskSpec& mask, int64_t q_len, int64_t kv_len, int64_t i, int64_t j) {
  const int64_t aligned = i + kv_len - q_len;
  if (mask.causal.alignment == Causal::kTopLeft && j > i) return false;
  if (mask.causal.alignment == Causal::kBottomRight && j > aligned) return false;
  if (mask.window.left < kUnbounded && j < aligned - mask.window.left) return false;
  return mask.window.right >= kUnbounded || j <= aligned + mask.window.right;
}

std::vector<MaskSpec> AllMasks() {
  std::vector<MaskSpec> masks;
  for (Causal alignment : kAlignments) {
    for (int64_t left : kBounds) {
      for (int64_t right : kBounds) masks.push_back({{alignment}, {left, right}});
    }
  }
  return masks;
}

template <typename Check>
void ForEachShape(Check check) {
  for (const MaskSpec& mask : AllMasks()) {
    for (int64_t q_len : {1, 2, 5, 12}) {
      for (int64_t kv_len : {0, 1, 5, 12, 13}) check(mask, q_len, kv_len);
    }
  }
}

TEST(Band, AllowsWhatTheDefinitionAllows) {
  ForEachShape([](const MaskSpec& mask, int64_t q_len, int64_t kv_len) {
    const Band band = mask.Resolve(q_len, kv_len);
    for (int64_t i = 0; i < q_len; ++i) {
      const KeyRange keys = band.RowKeys(i, kv_len);
      for (int64_t j = 0; j < kv_len; ++j) {
        const bool visible = IsVisible(mask, q_len, kv_len, i, j);
        ASSERT_EQ(band.Allows(i, j), visible) << "row " << i << " key " << j;
        ASSERT_EQ(keys.begin <= j && j < keys.end, visible) << "row " << i << " key " << j;
      }
    }
  });
}

TEST(Band, RangeOfATileIsTheHullOfItsRows) {
  ForEachShape([](const MaskSpec& mask, int64_t q_len, int64_t kv_len) {
    const Band band = mask.Resolve(q_len, kv_len);
    for (int64_t begin = 0; begin < q_len; ++begin) {
      for (int64_t end = begin + 1; end <= q_len; ++end) {
        const KeyRange tile = band.KvRange(begin, end, kv_len);
        ASSERT_GE(tile.size(), 0);
        if (!tile.empty()) {
          ASSERT_GE(tile.begin, 0);
          ASSERT_LE(tile.end, kv_len);
        }
        for (int64_t row = begin; row < end; ++row) {
          const KeyRange keys = band.RowKeys(row, kv_len);
          if (keys.empty()) continue;
          ASSERT_LE(tile.begin, keys.begin);
          ASSERT_GE(tile.end, keys.end);
        }
      }
    }
  });
}

TEST(Band, AllVisibleMeansEveryPair) {
  ForEachShape([](const MaskSpec& mask, int64_t q_len, int64_t kv_len) {
    const Band band = mask.Resolve(q_len, kv_len);
    for (int64_t q_end = 1; q_end <= q_len; ++q_end) {
      for (int64_t k_end = 1; k_end <= kv_len; ++k_end) {
        const int64_t q_begin = q_end / 2, k_begin = k_end / 2;
        bool all = true;
        for (int64_t i = q_begin; i < q_end; ++i) {
          for (int64_t j = k_begin; j < k_end; ++j) all &= IsVisible(mask, q_len, kv_len, i, j);
        }
        ASSERT_EQ(band.AllVisible(q_begin, q_end, k_begin, k_end), all);
      }
    }
  });
}

// Case K14: the two alignments differ where the lengths do.
TEST(Causal, AlignmentsDifferByTheLengthsDifference) {
  const MaskSpec top_left{{Causal::kTopLeft}, {}};
  const MaskSpec bottom_right{{Causal::kBottomRight}, {}};
  EXPECT_EQ(top_left.Resolve(2, 5).RowKeys(0, 5).size(), 1);
  EXPECT_EQ(bottom_right.Resolve(2, 5).RowKeys(0, 5).size(), 4);
  EXPECT_EQ(bottom_right.Resolve(2, 5).RowKeys(1, 5).size(), 5);
  EXPECT_EQ(bottom_right.Resolve(5, 2).RowKeys(2, 2).size(), 0);
  EXPECT_EQ(bottom_right.Resolve(5, 2).RowKeys(3, 2).size(), 1);
}

// Case K23: a window of W to the left shows W + 1 keys.
TEST(Window, IsInclusiveAtBothEnds) {
  const Band band = MaskSpec{{}, {3, 1}}.Resolve(10, 10);
  EXPECT_EQ(band.RowKeys(5, 10), (KeyRange{2, 7}));
  EXPECT_EQ(band.RowKeys(0, 10), (KeyRange{0, 2}));
  EXPECT_EQ(band.RowKeys(9, 10), (KeyRange{6, 10}));
}

// Case K34: lengths past 2^31, without their memory.
TEST(Band, LengthsPastTwoToThe31) {
  const int64_t len = int64_t{1} << 40;
  const Band band =
      MaskSpec{{Causal::kBottomRight}, {int64_t{1} << 35, kUnbounded}}.Resolve(len, len);
  EXPECT_EQ(band.RowKeys(len - 1, len), (KeyRange{len - 1 - (int64_t{1} << 35), len}));
  EXPECT_EQ(MaskSpec{}.Resolve(len, len).KvRange(0, len, len), (KeyRange{0, len}));
}

}  // namespace
}  // namespace attnd::kernels
