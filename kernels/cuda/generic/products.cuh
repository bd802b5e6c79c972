// The two matrix products of a tile, in fragments of m16n8: S += Q K^T and O += P V.
//
// A fragment c[4] of lane l holds rows l / 4 (c[0], c[1]) and l / 4 + 8 (c[2], c[3]), columns 2 (l
// % 4) and the next.
#ifndef ATTND_KERNELS_CUDA_GENERIC_PRODUCTS_CUH_
#define ATTND_KERNELS_CUDA_GENERIC_PRODUCTS_CUH_

#include <cstdint>

#include "kernels/cuda/generic/config.h"
#include "kernels/cuda/generic/tile.cuh"
#include "kernels/cuda/ptx.cuh"

namespace attnd::kernels::cuda::generic {

// Where a lane reads the fragments of a 16-row A operand, and of two 8-row B operands, with
// ldmatrix; a step is 32 bytes along the rows. V, transposed as it is read, takes A's pattern.
template <class Layout>
__device__ __forceinline__ LaneAddress<Layout> OperandA(uint32_t tile, int first_row) {
  const int lane = threadIdx.x & 31;
  return {tile, first_row + (lane & 15), lane >> 4};
}
template <class Layout>
__device__ __forceinline__ LaneAddress<Layout> OperandB2(uint32_t tile) {
  const int lane = threadIdx.x & 31;
  return {tile, (lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1};
}

// Halves; fp32 is in products_f32.cuh.
template <class Element, int kHeadDim, bool kGeneral>
struct Products {
  using C = Config<sizeof(Element), kHeadDim, kGeneral>;
  static constexpr int kRowTiles = C::kRowTiles;
  static constexpr int kKeyTiles = C::kKvTile / 8;
  static constexpr int kDimTiles = kHeadDim / 8;
  using QLayout = SwizzledLayout<kHeadDim * sizeof(Element)>;
  using KLayout = QLayout;
  using VLayout = QLayout;
  using OLayout = QLayout;

  // S = Q K^T, from zero.
  __device__ static __forceinline__ void Scores(float (&s)[kRowTiles][kKeyTiles][4],
                                                uint32_t q_tile, uint32_t k_tile, int warp_row) {
    const auto q = OperandA<QLayout>(q_tile, warp_row);
    const auto k = OperandB2<KLayout>(k_tile);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[r][n][e] = 0;
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) ptx::LdMatrixX4(a[r], q.At(16 * r, step));
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        uint32_t b[4];
        ptx::LdMatrixX4(b, k.At(8 * n, step));
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          ptx::Mma16816<Element>(s[r][n], a[r], b[0], b[1]);
          ptx::Mma16816<Element>(s[r][n + 1], a[r], b[2], b[3]);
        }
      }
    }
  }

  // O += P V, P rounded to the element type.
  __device__ static __forceinline__ void Accumulate(float (&o)[kRowTiles][kDimTiles][4],
                                                    const float (&p)[kRowTiles][kKeyTiles][4],
                                                    const unsigned char* v_tile) {
    const auto v = OperandA<VLayout>(ptx::SharedAddress(v_tile), 0);
#pragma unroll
    for (int step = 0; step < kKeyTiles / 2; ++step) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        a[r][0] = ptx::Pack2<Element>(p[r][2 * step][0], p[r][2 * step][1]);
        a[r][1] = ptx::Pack2<Element>(p[r][2 * step][2], p[r][2 * step][3]);
        a[r][2] = ptx::Pack2<Element>(p[r][2 * step + 1][0], p[r][2 * step + 1][1]);
        a[r][3] = ptx::Pack2<Element>(p[r][2 * step + 1][2], p[r][2 * step + 1][3]);
      }
#pragma unroll
      for (int d = 0; d < kDimTiles; d += 2) {
        uint32_t b[4];
        ptx::LdMatrixX4Trans(b, v.At(16 * step, d / 2));
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          ptx::Mma16816<Element>(o[r][d], a[r], b[0], b[1]);
          ptx::Mma16816<Element>(o[r][d + 1], a[r], b[2], b[3]);
        }
      }
    }
  }
};

}  // namespace attnd::kernels::cuda::generic

#endif  // ATTND_KERNELS_CUDA_GENERIC_PRODUCTS_CUH_
