// What every CUDA kernel does to a score, and the bits by which a value is not finite.
#ifndef ATTND_KERNELS_CUDA_SCORE_CUH_
#define ATTND_KERNELS_CUDA_SCORE_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace attnd::kernels::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

// x = cap * tanh(s * scale / cap) - slope * distance, in units of log2(e), for the family with
// everything.
struct ScoreTransform {
  float scale;
  float softcap;
  float slope;
  int diagonal;  // kv_len - q_len
  bool alibi;

  __device__ __forceinline__ float operator()(float s, int row, int key) const {
    float x = __fmul_rn(s, scale);
    if (softcap > 0) x = softcap * tanhf(x / softcap);
    if (alibi) x -= slope * fabsf(static_cast<float>(row + diagonal - key));
    return __fmul_rn(x, kLog2E);
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
struct FiniteBits<__half> {
  static constexpr uint32_t kExponent = 0x7c007c00, kOne = 0x04000400, kCarry = 0x80008000;
};
template <>
struct FiniteBits<__nv_bfloat16> {
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
