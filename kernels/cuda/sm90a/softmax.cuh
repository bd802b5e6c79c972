// Scores to probabilities, a tile at a time, in the warpgroup's registers (wgmma.cuh has the
// layout): thread by thread two rows, h = 0 and 1, eight rows apart.
#ifndef ATTND_KERNELS_CUDA_SM90A_SOFTMAX_CUH_
#define ATTND_KERNELS_CUDA_SM90A_SOFTMAX_CUH_

#include <cstdint>

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/score.cuh"

namespace attnd::kernels::cuda::sm90a {

// Hides keys by select: what a hidden score was, NaN included, is gone. `row` and `key` are those
// of s[0]. Without kLowerBound the band has none (band_lo is far below any key).
template <bool kLowerBound, int kCount>
__device__ __forceinline__ void MaskScores(float (&s)[kCount], int row, int key, int kv_len,
                                           int band_lo, int band_hi) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int first = row + 8 * h + band_lo - key;
    const int last = min(row + 8 * h + band_hi, kv_len - 1) - key;
#pragma unroll
    for (int n = 0; n < kCount / 4; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = 8 * n + e;
        if (column > last || (kLowerBound && column < first)) s[4 * n + 2 * h + e] = -INFINITY;
      }
  }
}

template <int kCount>
__device__ __forceinline__ void TransformScores(float (&s)[kCount], int row, int key,
                                                const ScoreTransform& transform) {
  transform.Apply([&](const auto& change) {
#pragma unroll
    for (int n = 0; n < kCount / 4; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        s[4 * n + e] = change(s[4 * n + e], row + 8 * (e >> 1), key + 8 * n + (e & 1));
      }
  });
}

// A row's probabilities are 2^(x - base), x in units of log2(e). The base follows the running
// maximum only when that has grown by more than kSlack: until then probabilities reach up to
// 2^kSlack, which fp32 sums and 16-bit probabilities hold as well, and O need not be scaled anew.
// Each row decides for itself. Not more slack than this: the largest probability is exact, 1, only
// where the base is its own score, and at 512 keys its rounding adds 6 % of error with a slack of
// 8 (as measured beside cuDNN), 4 % with 2, by an emulation that agrees with the measurement.
inline constexpr float kSlack = 2;

struct RowState {
  float base[2];  // -inf: no key yet
  float sum[2];   // this thread's part; the four threads of a row are added at the end
  __device__ __forceinline__ void Reset() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      base[h] = -INFINITY;
      sum[h] = 0;
    }
  }
};

// Of each of a thread's two rows, in two chains each: one instruction must not wait for the one
// before it. (Four chains each were no faster.)
template <int kCount, class Op>
__device__ __forceinline__ void Reduce(const float (&s)[kCount], const Op& op, float (&result)[2]) {
  float chains[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) chains[i] = s[i];
#pragma unroll
  for (int i = 4; i < kCount; ++i) chains[i % 4] = op(chains[i % 4], s[i]);
  result[0] = op(chains[0], chains[1]);
  result[1] = op(chains[2], chains[3]);
}

template <int kCount>
__device__ __forceinline__ void RowMaxima(const float (&s)[kCount], float (&max)[2]) {
  const auto larger = [](float a, float b) { return fmaxf(a, b); };
  Reduce(s, larger, max);
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
#pragma unroll
    for (int h = 0; h < 2; ++h) max[h] = fmaxf(max[h], __shfl_xor_sync(~0u, max[h], step));
  }
}

// s becomes 2^(s * to_log2 + minus_base), which is added up.
template <int kCount>
__device__ __forceinline__ void Exponentials(float (&s)[kCount], const float (&minus_base)[2],
                                             float to_log2, float (&sum)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int h = (i >> 1) & 1;
    s[i] = ptx::Exp2(__fmaf_rn(s[i], to_log2, minus_base[h]));
  }
  float tile_sum[2];
  Reduce(
      s, [](float a, float b) { return a + b; }, tile_sum);
  sum[0] += tile_sum[0];
  sum[1] += tile_sum[1];
}

// s becomes the probabilities; base and sum move on. Returns in `rescale` what O has to be
// multiplied by, 1 for most.
template <int kCount>
__device__ __forceinline__ void OnlineSoftmax(float (&s)[kCount], RowState& state, float to_log2,
                                              float (&rescale)[2]) {
  float max[2];
  RowMaxima(s, max);
  float minus_base[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float base = __fmul_rn(max[h], to_log2);
    const float old_base = state.base[h];
    // Also true for the first finite maximum, above a base of -inf.
    const bool moves = base > old_base + kSlack;
    state.base[h] = moves ? base : old_base;
    rescale[h] = moves ? ptx::Exp2(old_base - base) : 1.0f;
    minus_base[h] = state.base[h] == -INFINITY ? 0.0f : -state.base[h];
    state.sum[h] *= rescale[h];
  }
  const bool huge = fmaxf(fabsf(minus_base[0]), fabsf(minus_base[1])) > kHugeBase;
  if (__any_sync(~0u, huge)) {
    // Rounded by itself, as the base was.
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[i] = __fmul_rn(s[i], to_log2);
    to_log2 = 1.0f;
  }
  Exponentials(s, minus_base, to_log2, state.sum);
}

// Probabilities as the products' left operand: four registers for each 16 keys.
template <class Element, int kCount>
__device__ __forceinline__ void PackProbabilities(const float (&s)[kCount],
                                                  uint32_t (&p)[kCount / 2]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) p[i] = ptx::Pack2<Element>(s[2 * i], s[2 * i + 1]);
}

}  // namespace attnd::kernels::cuda::sm90a

#endif  // ATTND_KERNELS_CUDA_SM90A_SOFTMAX_CUH_
