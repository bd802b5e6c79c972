// The kernel's vector functions against the C library's in double precision, on every instruction
// set that this machine has.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/features.h"
#include "kernels/cpu/flash_kernel.h"

namespace attnd::kernels::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<const FlashKernel*> Kernels() {
  std::vector<const FlashKernel*> kernels = {&kFlashPortable};
#if defined(__x86_64__)
  if (Avx2Available().ok()) kernels.push_back(&kFlashAvx2);
  if (Avx512Available().ok()) kernels.push_back(&kFlashAvx512);
  if (Avx512BF16Available().ok()) kernels.push_back(&kFlashAvx512BF16);
#endif
  return kernels;
}

class CpuMath : public ::testing::TestWithParam<const FlashKernel*> {};
INSTANTIATE_TEST_SUITE_P(All, CpuMath, ::testing::ValuesIn(Kernels()),
                         [](const auto& info) { return std::string(info.param->arch); });

// Every `step`th float of [from, to], both of one sign, by their bits.
std::vector<float> Floats(float from, float to, uint32_t step) {
  std::vector<float> values;
  const uint32_t last = std::bit_cast<uint32_t>(to);
  for (uint32_t bits = std::bit_cast<uint32_t>(from); bits <= last; bits += step) {
    values.push_back(std::bit_cast<float>(bits));
  }
  values.resize((values.size() + 15) / 16 * 16, to);
  return values;
}

// Distance of two results in units of the last place of `expected`.
double UlpError(float actual, double expected) {
  const double ulp = std::max(std::ldexp(1.0, std::ilogb(expected) - 23), 0x1p-149);
  return std::fabs(actual - expected) / ulp;
}

TEST_P(CpuMath, ExpIsWithinTwoUlp) {
  const std::vector<float> in = Floats(-0x1p-30f, -104.5f, 601);
  std::vector<float> out(in.size());
  GetParam()->exp(in.data(), out.data(), static_cast<int64_t>(in.size()));
  double worst = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const double error = UlpError(out[i], std::exp(static_cast<double>(in[i])));
    worst = std::max(worst, error);
    ASSERT_LE(error, 2) << "exp(" << in[i] << ") = " << out[i];
  }
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST_P(CpuMath, Exp2IsWithinTwoUlp) {
  const std::vector<float> in = Floats(-0x1p-30f, -151.5f, 601);
  std::vector<float> out(in.size());
  GetParam()->exp2(in.data(), out.data(), static_cast<int64_t>(in.size()));
  for (size_t i = 0; i < in.size(); ++i) {
    const double error = UlpError(out[i], std::exp2(static_cast<double>(in[i])));
    ASSERT_LE(error, 2) << "2^" << in[i] << " = " << out[i];
  }
}

TEST_P(CpuMath, Exp2OfSpecialValues) {
  const float in[16] = {-kInfinity, kNaN,    0.0f,    -0.0f,   -1e30f, -151.0f,
                        -149.0f,    -126.0f, -126.5f, -1e-40f, -1.0f};
  float out[16];
  GetParam()->exp2(in, out, 16);
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_TRUE(std::isnan(out[1]));
  EXPECT_EQ(out[2], 1.0f);
  EXPECT_EQ(out[3], 1.0f);
  EXPECT_EQ(out[4], 0.0f);
  EXPECT_EQ(out[5], 0.0f);
  EXPECT_EQ(out[6], 0x1p-149f);
  EXPECT_EQ(out[7], 0x1p-126f);
  EXPECT_EQ(out[8], static_cast<float>(std::exp2(-126.5)));  // subnormal
  EXPECT_EQ(out[9], 1.0f);
  EXPECT_EQ(out[10], 0.5f);
}

TEST_P(CpuMath, ExpOfSpecialValues) {
  const float in[16] = {-kInfinity, kNaN,   0.0f,   -0.0f,   -1e30f, -104.0f,
                        -103.0f,    -87.5f, -88.0f, -1e-40f, -1e-8f};
  float out[16];
  GetParam()->exp(in, out, 16);
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_TRUE(std::isnan(out[1]));
  EXPECT_EQ(out[2], 1.0f);
  EXPECT_EQ(out[3], 1.0f);
  EXPECT_EQ(out[4], 0.0f);
  EXPECT_EQ(out[5], 0.0f);
  EXPECT_EQ(out[6], static_cast<float>(std::exp(-103.0)));  // subnormal
  EXPECT_EQ(out[9], 1.0f);
}

TEST_P(CpuMath, TanhIsWithinOneMillionthForEveryMagnitude) {
  for (float sign : {1.0f, -1.0f}) {
    const std::vector<float> in = Floats(sign * 1e-37f, sign * 1e30f, 1009);
    std::vector<float> out(in.size());
    GetParam()->tanh(in.data(), out.data(), static_cast<int64_t>(in.size()));
    for (size_t i = 0; i < in.size(); ++i) {
      const double expected = std::tanh(static_cast<double>(in[i]));
      ASSERT_LE(std::fabs(out[i] - expected), 1e-6 * std::fabs(expected)) << in[i];
    }
  }
}

TEST_P(CpuMath, TanhOfSpecialValues) {
  const float in[16] = {kInfinity, -kInfinity, kNaN, 0.0f, -0.0f};
  float out[16];
  GetParam()->tanh(in, out, 16);
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], -1.0f);
  EXPECT_TRUE(std::isnan(out[2]));
  EXPECT_EQ(out[3], 0.0f);
  EXPECT_TRUE(std::signbit(out[4]));
}

#if defined(__x86_64__)
// The AMX kernel's own, for weights that become bf16.
TEST(AmxMath, Exp2IsWithinThreeMillionths) {
  if (!AmxAvailable().ok()) GTEST_SKIP() << AmxAvailable();
  const std::vector<float> in = Floats(-0x1p-30f, -126.0f, 601);
  std::vector<float> out(in.size());
  kFlashAmx.exp2(in.data(), out.data(), static_cast<int64_t>(in.size()));
  for (size_t i = 0; i < in.size(); ++i) {
    const double expected = std::exp2(static_cast<double>(in[i]));
    ASSERT_LE(std::fabs(out[i] - expected), 3e-6 * expected) << in[i];
  }
}

TEST(AmxMath, Exp2OfSpecialValues) {
  if (!AmxAvailable().ok()) GTEST_SKIP() << AmxAvailable();
  const float in[16] = {0.0f, -0.0f, kNaN, -127.0f, -1e30f, -kInfinity, -1.0f};
  float out[16];
  kFlashAmx.exp2(in, out, 16);
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], 1.0f);
  EXPECT_TRUE(std::isnan(out[2]));
  for (int i : {3, 4, 5}) EXPECT_EQ(out[i], 0.0f) << in[i];  // never subnormal
  EXPECT_EQ(out[6], 0.5f);
}
#endif

}  // namespace
}  // namespace attnd::kernels::cpu
