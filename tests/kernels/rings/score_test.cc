// What every CUDA kernel does to a score: kernels/cuda/score.cuh on the host, whose exp2 and
// division are exact to half an ulp where the GPU's are to 2 and 1.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/kernels/rings/device.h"
// Device code from here on.
#include "kernels/cuda/score.cuh"

namespace attnd::kernels::cuda {
namespace {

// The GPU's approximations may add 3e-7 to what is measured here (an error of 2 ulp in the power
// and of 1 in the reciprocal, at 0.55, where they weigh most).
constexpr double kMaxRelativeError = 1e-6 - 3e-7;

TEST(Tanh, IsWithinItsBoundForEveryTenthFloat) {
  double worst = 0;
  const uint32_t end = std::bit_cast<uint32_t>(20.0f);
  for (uint32_t bits = std::bit_cast<uint32_t>(1e-30f); bits < end; bits += 10) {
    const float x = std::bit_cast<float>(bits);
    const double exact = std::tanh(static_cast<double>(x));
    const double error = std::abs(Tanh(x) - exact) / exact;
    worst = std::max(worst, error);
  }
  EXPECT_LT(worst, kMaxRelativeError);
  EXPECT_GT(worst, 1e-8);  // it was measured
}

TEST(Tanh, IsOddAndKeepsInfinitiesAndNaN) {
  for (const float x : {1e-40f, 0.3f, 0.55f, 2.0f, 100.0f}) EXPECT_EQ(Tanh(-x), -Tanh(x)) << x;
  EXPECT_EQ(Tanh(0.0f), 0.0f);
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Tanh(infinity), 1.0f);
  EXPECT_EQ(Tanh(-infinity), -1.0f);
  EXPECT_TRUE(std::isnan(Tanh(std::numeric_limits<float>::quiet_NaN())));
}

// One score, at row 7 and key 2 of a problem whose diagonal is 1.
float Transformed(const ScoreTransform& transform, float s) {
  transform.Apply([&](const auto& change) { s = change(s, 7, 2); });
  return s;
}

TEST(ScoreTransform, ScalesCapsAndBiasesInThatOrder) {
  const float s = 12.0f, scale = 0.25f, softcap = 5.0f, slope = 0.5f;
  const int diagonal = 1;
  const double distance = std::abs(7 + diagonal - 2);
  const double capped = softcap * std::tanh(scale * s / softcap);
  EXPECT_NEAR(Transformed({scale, 0, 0, diagonal, false}, s), kLog2E * scale * s, 1e-5);
  EXPECT_NEAR(Transformed({scale, 0, slope, diagonal, true}, s),
              kLog2E * (scale * s - slope * distance), 1e-5);
  EXPECT_NEAR(Transformed({scale / softcap, softcap, 0, diagonal, false}, s), kLog2E * capped,
              1e-5);
  EXPECT_NEAR(Transformed({scale / softcap, softcap, slope, diagonal, true}, s),
              kLog2E * (capped - slope * distance), 1e-5);
}

}  // namespace
}  // namespace attnd::kernels::cuda
