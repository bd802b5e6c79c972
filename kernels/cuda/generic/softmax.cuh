// Scores to probabilities, a tile at a time, and the running state of the rows.
#ifndef ATTND_KERNELS_CUDA_GENERIC_SOFTMAX_CUH_
#define ATTND_KERNELS_CUDA_GENERIC_SOFTMAX_CUH_

#include <cstdint>

#include "kernels/cuda/params.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/score.cuh"

namespace attnd::kernels::cuda::generic {

// Where a warp's fragments lie in the score matrix.
struct FragmentPlace {
  int row;  // of c[0]; c[2] is 8 rows below
  int key;  // of c[0], in the tile's first column of fragments
};

template <int kRowTiles, int kKeyTiles>
__device__ __forceinline__ void TransformScores(float (&s)[kRowTiles][kKeyTiles][4],
                                                const FragmentPlace& place, int k_begin,
                                                const ScoreTransform& transform) {
  transform.Apply([&](const auto& change) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          s[r][n][e] = change(s[r][n][e], place.row + 16 * r + 8 * (e >> 1),
                              k_begin + place.key + 8 * n + (e & 1));
        }
  });
}

// Hides keys by select: what a hidden score was, NaN included, is gone.
template <int kRowTiles, int kKeyTiles>
__device__ __forceinline__ void MaskScores(float (&s)[kRowTiles][kKeyTiles][4],
                                           const FragmentPlace& place, int k_begin, int kv_len,
                                           int band_lo, int band_hi) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = place.row + 16 * r + 8 * h;
      const int first = row + band_lo - k_begin - place.key;
      const int last = min(row + band_hi, kv_len - 1) - k_begin - place.key;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = 8 * n + e;
          if (column < first || column > last) s[r][n][2 * h + e] = -INFINITY;
        }
    }
}

// The running maximum of each row is kept as `base`, the maximum in units of log2(e), rounded once:
// every probability and every rescale subtracts the same number, so that what the rounding did
// cancels in the quotient.
template <int kRowTiles>
struct RowState {
  float max[kRowTiles][2];   // raw scores; -inf: no key yet
  float base[kRowTiles][2];  // max * to_log2, 0 while max is -inf
  float sum[kRowTiles][2];   // this thread's part; the four threads of a row are added at the end

  __device__ __forceinline__ void Reset() {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        max[r][h] = -INFINITY;
        base[r][h] = 0;
        sum[r][h] = 0;
      }
  }
};

// s becomes the probabilities, which sum adds up. kMayBeHuge: a base of the warp is huge.
template <bool kMayBeHuge, int kRowTiles, int kKeyTiles>
__device__ __forceinline__ void Probabilities(float (&s)[kRowTiles][kKeyTiles][4],
                                              RowState<kRowTiles>& state, float to_log2) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float base = state.base[r][h];
      const bool huge = kMayBeHuge && __any_sync(~0u, fabsf(base) > kHugeBase);
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; ++e) {
          float x = __fmaf_rn(s[r][n][e], to_log2, -base);
          if (kMayBeHuge && huge) x = __fsub_rn(__fmul_rn(s[r][n][e], to_log2), base);
          s[r][n][e] = ptx::Exp2(x);
          sum += s[r][n][e];
        }
      state.sum[r][h] += sum;
    }
}

// s becomes the probabilities; sum and base move on; o is scaled to the new base. In steps over all
// rows, so that their shuffles wait side by side and no branch stands between them.
template <int kRowTiles, int kKeyTiles, int kDimTiles>
__device__ __forceinline__ void OnlineSoftmax(float (&s)[kRowTiles][kKeyTiles][4],
                                              float (&o)[kRowTiles][kDimTiles][4],
                                              RowState<kRowTiles>& state, float to_log2) {
  float rescale[kRowTiles][2];
  bool huge = false;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float max = state.max[r][h];
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
        max = fmaxf(max, fmaxf(s[r][n][2 * h], s[r][n][2 * h + 1]));
      max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
      max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
      const float base = max == -INFINITY ? 0.0f : __fmul_rn(max, to_log2);
      rescale[r][h] = state.max[r][h] == -INFINITY ? 1.0f : ptx::Exp2(state.base[r][h] - base);
      state.max[r][h] = max;
      state.base[r][h] = base;
      huge |= fabsf(base) > kHugeBase;
    }
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!__any_sync(~0u, rescale[r][h] != 1.0f)) continue;
      state.sum[r][h] *= rescale[r][h];
#pragma unroll
      for (int d = 0; d < kDimTiles; ++d) {
        o[r][d][2 * h] *= rescale[r][h];
        o[r][d][2 * h + 1] *= rescale[r][h];
      }
    }
  if (__any_sync(~0u, huge)) {
    Probabilities<true>(s, state, to_log2);
  } else {
    Probabilities<false>(s, state, to_log2);
  }
}

}  // namespace attnd::kernels::cuda::generic

#endif  // ATTND_KERNELS_CUDA_GENERIC_SOFTMAX_CUH_
