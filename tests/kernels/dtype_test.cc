// Scalar conversions, over every half and every rounding boundary between two of them.
#include "kernels/dtype.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace attnd::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct HalfType {
  const char* name;
  float (*to_float)(uint16_t);
  uint16_t (*from_float)(float);
  uint16_t inf_bits;
};

class Half : public ::testing::TestWithParam<HalfType> {};

TEST_P(Half, EveryValueSurvivesTheWayThereAndBack) {
  const HalfType& half = GetParam();
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float value = half.to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_GT(bits & 0x7fff, half.inf_bits) << bits;
      EXPECT_TRUE(std::isnan(half.to_float(half.from_float(value)))) << bits;
    } else {
      ASSERT_EQ(half.from_float(value), bits) << bits;
    }
  }
}

TEST_P(Half, RoundsToNearestAndTiesToEven) {
  const HalfType& half = GetParam();
  // Neighbours lo and hi, both finite; the halfway point is exact in fp32.
  for (uint32_t lo = 0; lo + 1 < half.inf_bits; ++lo) {
    const float low = half.to_float(static_cast<uint16_t>(lo));
    const float high = half.to_float(static_cast<uint16_t>(lo + 1));
    const float middle = low + (high - low) / 2;
    const uint16_t even = static_cast<uint16_t>(lo % 2 == 0 ? lo : lo + 1);
    ASSERT_EQ(half.from_float(middle), even) << lo;
    ASSERT_EQ(half.from_float(std::nextafter(middle, 0.0f)), lo) << lo;
    ASSERT_EQ(half.from_float(std::nextafter(middle, kInf)), lo + 1) << lo;
    ASSERT_EQ(half.from_float(-middle), even | 0x8000) << lo;
  }
}

TEST_P(Half, TooLargeBecomesInfinity) {
  const HalfType& half = GetParam();
  const float largest = half.to_float(half.inf_bits - 1);
  const float below = half.to_float(half.inf_bits - 2);
  const float overflow = largest + (largest - below) / 2;  // a tie, and infinity is the even side
  EXPECT_EQ(half.from_float(overflow), half.inf_bits);
  EXPECT_EQ(half.from_float(std::nextafter(overflow, 0.0f)), half.inf_bits - 1);
  EXPECT_EQ(half.from_float(kInf), half.inf_bits);
  EXPECT_EQ(half.from_float(-kInf), half.inf_bits | 0x8000);
}

TEST_P(Half, NaNStaysNaN) {
  const HalfType& half = GetParam();
  EXPECT_TRUE(std::isnan(half.to_float(half.from_float(kNaN))));
  // A payload in the low bits alone must not be cut off to infinity.
  const float low_payload = std::bit_cast<float>(0x7f800001u);
  EXPECT_TRUE(std::isnan(half.to_float(half.from_float(low_payload))));
}

INSTANTIATE_TEST_SUITE_P(All, Half,
                         ::testing::Values(HalfType{"f16", F16ToFloat, FloatToF16, 0x7c00},
                                           HalfType{"bf16", BF16ToFloat, FloatToBF16, 0x7f80}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(F16, KnownValues) {
  EXPECT_EQ(F16ToFloat(0x3c00), 1.0f);
  EXPECT_EQ(F16ToFloat(0x7bff), 65504.0f);
  EXPECT_EQ(F16ToFloat(0x0001), 0x1p-24f);
  EXPECT_EQ(F16ToFloat(0x8400), -0x1p-14f);
}

TEST(BF16, KnownValues) {
  EXPECT_EQ(BF16ToFloat(0x3f80), 1.0f);
  EXPECT_EQ(BF16ToFloat(0x4802), 133120.0f);
  EXPECT_EQ(FloatToBF16(1.00390625f), 0x3f80);  // a tie
}

TEST(DType, ElementsAreLoadedAndStoredBySize) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    uint32_t memory[4] = {};
    StoreElement(memory, 3, dtype, -1.5f);
    EXPECT_EQ(LoadElement(memory, 3, dtype), -1.5f) << DTypeName(dtype);
    EXPECT_EQ(LoadElement(memory, 2, dtype), 0.0f) << DTypeName(dtype);
    EXPECT_EQ(SizeBytes(dtype), dtype == DType::kF32 ? 4 : 2);
  }
}

}  // namespace
}  // namespace attnd::kernels
