// The two matrix products of a tile in fp32, on planes of fp16 (split.cuh), and what the planes do
// not hold: factors and infinities.
#ifndef ATTND_KERNELS_CUDA_GENERIC_PRODUCTS_F32_CUH_
#define ATTND_KERNELS_CUDA_GENERIC_PRODUCTS_F32_CUH_

#include <cstdint>

#include "kernels/cuda/generic/products.cuh"
#include "kernels/cuda/generic/split.cuh"

namespace attnd::kernels::cuda::generic {

// The matrix unit truncates as it adds. So what is small, a product with a lo part, is added up
// apart from what is large, or before it, and no sum is longer than one tile: few truncations
// happen at a sum's full size, and over thousands of keys they do not add up to a bias.
template <int kHeadDim, bool kGeneral>
struct Products<float, kHeadDim, kGeneral> {
  using C = Config<4, kHeadDim, kGeneral>;
  static constexpr int kRowTiles = C::kRowTiles;
  static constexpr int kKeyTiles = C::kKvTile / 8;
  static constexpr int kDimTiles = kHeadDim / 8;
  static constexpr int kKeySteps = kKeyTiles / 2;
  using Plane = SwizzledLayout<kHeadDim * 2>;
  using OLayout = SwizzledLayout<kHeadDim * 4>;
  // 8-dim tiles of O whose products run side by side; eight sums hide the matrix unit's latency.
  static constexpr int kDimsAtOnce = 4 / kRowTiles;
  static_assert(kDimTiles % kDimsAtOnce == 0);

  // S = Q K^T, from zero. Factors: those of the warp's rows, and of the tile's keys.
  __device__ static __forceinline__ void Scores(float (&s)[kRowTiles][kKeyTiles][4],
                                                uint32_t q_planes, uint32_t k_planes, int warp_row,
                                                const float* q_factors, const float* k_factors) {
    const auto q = OperandA<Plane>(q_planes, warp_row);
    const auto k = OperandB2<Plane>(k_planes);
    float small[kRowTiles][kKeyTiles][4];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[r][n][e] = small[r][n][e] = 0;
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      ptx::FetchNoFurther();
      uint32_t a_hi[kRowTiles][4], a_lo[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        ptx::LdMatrixX4(a_hi[r], q.At(16 * r, step));
        ptx::LdMatrixX4(a_lo[r], q.At(C::kQTile + 16 * r, step));
      }
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        uint32_t b_hi[4], b_lo[4];
        ptx::LdMatrixX4(b_hi, k.At(8 * n, step));
        ptx::LdMatrixX4(b_lo, k.At(C::kKvTile + 8 * n, step));
        MmaAll(small, n, a_lo, b_hi);
        MmaAll(s, n, a_hi, b_hi);
        MmaAll(small, n, a_hi, b_lo);
      }
    }
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      const float2 k_factor =
          reinterpret_cast<const float2*>(k_factors)[(8 * n + 2 * (lane & 3)) / 2];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float q_factor = q_factors[16 * r + 8 * (e >> 1) + (lane >> 2)];
          const float sum = s[r][n][e] + small[r][n][e];
          s[r][n][e] = __fmul_rn(__fmul_rn(sum, e & 1 ? k_factor.y : k_factor.x), q_factor);
        }
    }
  }

  // O += P V. P becomes fp16 planes too, in registers: each key's factor goes into P first, and
  // then each row is brought to its own largest, so that a key whose V is huge but unseen costs no
  // accuracy. p is used up.
  __device__ static __forceinline__ void Accumulate(float (&o)[kRowTiles][kDimTiles][4],
                                                    float (&p)[kRowTiles][kKeyTiles][4],
                                                    uint32_t v_planes, const float* v_factors) {
    float back[kRowTiles][2];
    BringToRowMax(p, back, v_factors);
    uint32_t a_hi[kKeySteps][kRowTiles][4], a_lo[kKeySteps][kRowTiles][4];
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step)
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* pair = &p[r][2 * step + (i >> 1)][2 * (i & 1)];
          SplitPair(pair[0], pair[1], a_hi[step][r][i], a_lo[step][r][i]);
        }
    const auto v = OperandA<Plane>(v_planes, 0);
#pragma unroll
    for (int d = 0; d < kDimTiles; d += kDimsAtOnce) {
      if constexpr (kRowTiles == 1) ptx::FetchNoFurther();
      uint32_t b_hi[kKeySteps][kDimsAtOnce / 2][4], b_lo[kKeySteps][kDimsAtOnce / 2][4];
#pragma unroll
      for (int step = 0; step < kKeySteps; ++step)
#pragma unroll
        for (int i = 0; i < kDimsAtOnce / 2; ++i) {
          ptx::LdMatrixX4Trans(b_hi[step][i], v.At(16 * step, d / 2 + i));
          ptx::LdMatrixX4Trans(b_lo[step][i], v.At(C::kKvTile + 16 * step, d / 2 + i));
        }
      float sums[kRowTiles][kDimsAtOnce][4] = {};
#pragma unroll
      for (int step = 0; step < kKeySteps; ++step)
#pragma unroll
        for (int i = 0; i < kDimsAtOnce; i += 2) MmaAll(sums, i, a_lo[step], b_hi[step][i / 2]);
#pragma unroll
      for (int step = 0; step < kKeySteps; ++step)
#pragma unroll
        for (int i = 0; i < kDimsAtOnce; i += 2) MmaAll(sums, i, a_hi[step], b_lo[step][i / 2]);
#pragma unroll
      for (int step = 0; step < kKeySteps; ++step)
#pragma unroll
        for (int i = 0; i < kDimsAtOnce; i += 2) MmaAll(sums, i, a_hi[step], b_hi[step][i / 2]);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
        for (int i = 0; i < kDimsAtOnce; ++i)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            o[r][d + i][e] = __fmaf_rn(sums[r][i][e], back[r][e >> 1], o[r][d + i][e]);
          }
    }
  }

 private:
  // c's column tiles n and n + 1 += every row tile of A times one fragment of B.
  template <int kTiles>
  __device__ static __forceinline__ void MmaAll(float (&c)[kRowTiles][kTiles][4], int n,
                                                const uint32_t (&a)[kRowTiles][4],
                                                const uint32_t (&b)[4]) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      ptx::Mma16816<Half>(c[r][n], a[r], b[0], b[1]);
      ptx::Mma16816<Half>(c[r][n + 1], a[r], b[2], b[3]);
    }
  }

  __device__ static __forceinline__ void BringToRowMax(float (&p)[kRowTiles][kKeyTiles][4],
                                                       float (&back)[kRowTiles][2],
                                                       const float* v_factors) {
    const int lane = threadIdx.x & 31;
    float2 factor[kKeyTiles];
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      factor[n] = reinterpret_cast<const float2*>(v_factors)[(8 * n + 2 * (lane & 3)) / 2];
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float max = 0;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
          p[r][n][2 * h] *= factor[n].x;
          p[r][n][2 * h + 1] *= factor[n].y;
          max = fmaxf(max, fmaxf(p[r][n][2 * h], p[r][n][2 * h + 1]));
        }
        max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
        max = fmaxf(max, __shfl_xor_sync(~0u, max, 2));
        const Powers powers = PowersFor(max);
        back[r][h] = powers.from;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
          p[r][n][2 * h] *= powers.to;
          p[r][n][2 * h + 1] *= powers.to;
        }
      }
  }
};

// The score of a row or key that holds an infinity, before the scale: only what is not finite
// counts beside it.
__device__ __forceinline__ float ScoreWithInfinities(const float* q, const float* k, int head_dim) {
  float sum = 0;
#pragma unroll 4
  for (int d = 0; d < head_dim; ++d) {
    const float x = q[d];
    const float y = k[d];
    if (!isfinite(x) || !isfinite(y)) sum += x * y;
  }
  return sum;
}

}  // namespace attnd::kernels::cuda::generic

#endif  // ATTND_KERNELS_CUDA_GENERIC_PRODUCTS_F32_CUH_
