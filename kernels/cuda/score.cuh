// What every CUDA kernel does to a score, and the bits by which a value is not finite.
#ifndef ATTND_KERNELS_CUDA_SCORE_CUH_
#define ATTND_KERNELS_CUDA_SCORE_CUH_

#include <cstdint>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/ptx.cuh"

namespace attnd::kernels::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// Within 1e-6 of tanh(x), relative, without a branch: below 0.55 a polynomial fitted to tanh(x) / x
// (within 4e-8 before rounding), from there on by the exponential.
__device__ __forceinline__ float Tanh(float x) {
  const float square = x * x;
  float small = 0.016437575f;
  small = fmaf(small, square, -0.052671812f);
  small = fmaf(small, square, 0.13320725f);
  small = fmaf(small, square, -0.33332947f);
  small = fmaf(small * square, x, x);
  const float power = ptx::Exp2(fabsf(x) * (2 * kLog2E));
  const float large = copysignf(fmaf(-2.0f, ptx::Reciprocal(power + 1), 1.0f), x);
  return fabsf(x) < 0.55f ? small : large;
}

// x = softcap * tanh(scale * s) - slope * distance, in units of log2(e), for the family with
// everything; without a softcap x = scale * s - ...
struct ScoreTransform {
  float scale;
  float softcap;
  float slope;
  int diagonal;  // kv_len - q_len
  bool alibi;

  // for_each(f) does s = f(s, row, key) to every score of a tile. One branch a tile.
  template <class ForEach>
  __device__ __forceinline__ void Apply(const ForEach& for_each) const {
    for_each([&](float s, int, int) { return __fmul_rn(s, scale); });
    if (softcap > 0) {
      for_each([&](float x, int, int) { return __fmul_rn(softcap, Tanh(x)); });
    }
    if (alibi) {
      for_each([&](float x, int row, int key) {
        return x - slope * fabsf(static_cast<float>(row + diagonal - key));
      });
    }
    for_each([&](float x, int, int) { return __fmul_rn(x, kLog2E); });
  }
};

// Beyond this a base's rounding error, 2^-24 of it, would no longer be small beside 1, and a
// maximum's own probability no longer near 1: there the scaled score is rounded before the
// subtraction, as the base was.
inline constexpr float kHugeBase = 1048576.0f;  // 2^20: an error of 2^-4

// A word of two elements: adding kOne to the exponent bits carries into the sign bits
// exactly where the exponent is all ones, which is where the element is not finite.
template <class Element>
struct FiniteBits;
template <>
struct FiniteBits<Half> {
  static constexpr uint32_t kExponent = 0x7c007c00, kOne = 0x04000400, kCarry = 0x80008000;
};
template <>
struct FiniteBits<BFloat16> {
  static constexpr uint32_t kExponent = 0x7f807f80, kOne = 0x00800080, kCarry = 0x80008000;
};

template <class Element>
__device__ __forceinline__ uint32_t NotFinite(uint32_t word) {
  using B = FiniteBits<Element>;
  return ((word & B::kExponent) + B::kOne) & B::kCarry;
}
template <class Element>
__device__ __forceinline__ uint32_t WithoutNotFinite(uint32_t word) {
  const uint32_t carry = NotFinite<Element>(word);
  return word & ((carry & 0x8000u) ? 0xffff0000u : ~0u) &
         ((carry & 0x80000000u) ? 0x0000ffffu : ~0u);
}

}  // namespace attnd::kernels::cuda

#endif  // ATTND_KERNELS_CUDA_SCORE_CUH_
