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

// fp32 as two tf32 parts: x = hi + lo + an error below 2^-22 |x|. The products hi.hi, hi.lo and
// lo.hi then carry fp32's accuracy through the matrix unit at twice the rate of FFMA; lo.lo is
// below what fp32 keeps.
struct Split {
  uint32_t hi[4];
  uint32_t lo[4];
};
__device__ __forceinline__ void SplitTf32(uint32_t bits, uint32_t& hi, uint32_t& lo) {
  const float x = __uint_as_float(bits);
  hi = ptx::RoundToTf32(x);
  const float rest = x - __uint_as_float(hi);
  // An infinity or NaN lives in hi alone: inf - inf would make the lo part a NaN.
  lo = rest == rest ? __float_as_uint(rest) : 0u;
}
__device__ __forceinline__ Split SplitAll(const uint32_t (&x)[4]) {
  Split s;
#pragma unroll
  for (int i = 0; i < 4; ++i) SplitTf32(x[i], s.hi[i], s.lo[i]);
  return s;
}

// The three products of the parts, the small ones first, so that fewer roundings happen at the
// sum's full size. A caller runs all its independent sums through one before the next: each waits
// for the one before it.
inline constexpr int kSplitProducts = 3;
__device__ __forceinline__ void MmaSplit(int product, float (&c)[4], const Split& a, uint32_t hi0,
                                         uint32_t hi1, uint32_t lo0, uint32_t lo1) {
  if (product == 0) ptx::Mma1688Tf32(c, a.lo, hi0, hi1);
  if (product == 1) ptx::Mma1688Tf32(c, a.hi, lo0, lo1);
  if (product == 2) ptx::Mma1688Tf32(c, a.hi, hi0, hi1);
}

template <class Element, int kHeadDim>
struct Products {
  using C = Config<sizeof(Element), kHeadDim>;
  static constexpr int kRowTiles = C::kRowTiles;
  static constexpr int kKeyTiles = C::kKvTile / 8;
  static constexpr int kDimTiles = kHeadDim / 8;
  using QLayout = SwizzledLayout<kHeadDim * sizeof(Element)>;
  using KLayout = QLayout;
  using VLayout = SwizzledLayout<kHeadDim * sizeof(Element)>;

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

template <int kHeadDim>
struct Products<float, kHeadDim> {
  using C = Config<4, kHeadDim>;
  static constexpr int kRowTiles = C::kRowTiles;
  static constexpr int kKeyTiles = C::kKvTile / 8;
  static constexpr int kDimTiles = kHeadDim / 8;
  using QLayout = SwizzledLayout<kHeadDim * 4>;
  using KLayout = QLayout;
  using VLayout = PaddedLayout<kHeadDim * 4, C::kVRowBytes>;
  // The matrix unit truncates as it adds, 3 times for 8 dims: sums over this many are added up in
  // the ordinary way, to nearest, so that the truncations of a long head_dim do not add up to a
  // bias (seen: 2.4e-6 at head_dim 256 without).
  static constexpr int kPartDims = kHeadDim == 96 ? 48 : 64;
  static constexpr int kPartSteps = kPartDims / 8;
  // 8-dim tiles of O whose products run side by side; four sums hide the matrix unit's latency, and
  // registers allow no more.
  static constexpr int kDimsAtOnce = kRowTiles == 2 ? 2 : 4;

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
    for (int part = 0; part < kHeadDim / kPartDims; ++part) {
      float sums[kRowTiles][kKeyTiles][4] = {};
#pragma unroll
      for (int step = part * kPartSteps; step < (part + 1) * kPartSteps; ++step) {
        Split a[kRowTiles];
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          uint32_t x[4];
          ptx::LdMatrixX4(x, q.At(16 * r, step));
          a[r] = SplitAll(x);
        }
        Split b[kKeyTiles / 2];
#pragma unroll
        for (int n = 0; n < kKeyTiles; n += 2) {
          uint32_t x[4];
          ptx::LdMatrixX4(x, k.At(8 * n, step));
          b[n / 2] = SplitAll(x);
        }
#pragma unroll
        for (int product = 0; product < kSplitProducts; ++product)
#pragma unroll
          for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
            for (int r = 0; r < kRowTiles; ++r) {
              const Split& both = b[n / 2];
              const int half = 2 * (n & 1);
              MmaSplit(product, sums[r][n], a[r], both.hi[half], both.hi[half + 1], both.lo[half],
                       both.lo[half + 1]);
            }
      }
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) s[r][n][e] += sums[r][n][e];
    }
  }

  // A C fragment's columns 2t and 2t + 1 serve as an A fragment's columns t and t + 4: the sum over
  // keys takes them in that order, so V's rows are read in the same. The tile's sum starts from
  // zero and is then added: the matrix unit truncates as it adds, and truncation over thousands of
  // keys would be a bias.
  __device__ static __forceinline__ void Accumulate(float (&o)[kRowTiles][kDimTiles][4],
                                                    const float (&p)[kRowTiles][kKeyTiles][4],
                                                    const unsigned char* v_tile) {
    const int lane = threadIdx.x & 31;
    Split a[kRowTiles][kKeyTiles];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        const uint32_t x[4] = {__float_as_uint(p[r][n][0]), __float_as_uint(p[r][n][2]),
                               __float_as_uint(p[r][n][1]), __float_as_uint(p[r][n][3])};
        a[r][n] = SplitAll(x);
      }
    const unsigned char* column = v_tile + (2 * (lane & 3)) * C::kVRowBytes + (lane >> 2) * 4;
#pragma unroll
    for (int d = 0; d < kDimTiles; d += kDimsAtOnce) {
      float sums[kRowTiles][kDimsAtOnce][4] = {};
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        uint32_t hi[kDimsAtOnce][2];
        uint32_t lo[kDimsAtOnce][2];
#pragma unroll
        for (int i = 0; i < kDimsAtOnce; ++i) {
          const unsigned char* v = column + (8 * n) * C::kVRowBytes + 32 * (d + i);
          SplitTf32(*reinterpret_cast<const uint32_t*>(v), hi[i][0], lo[i][0]);
          SplitTf32(*reinterpret_cast<const uint32_t*>(v + C::kVRowBytes), hi[i][1], lo[i][1]);
        }
#pragma unroll
        for (int product = 0; product < kSplitProducts; ++product)
#pragma unroll
          for (int i = 0; i < kDimsAtOnce; ++i)
#pragma unroll
            for (int r = 0; r < kRowTiles; ++r) {
              MmaSplit(product, sums[r][i], a[r][n], hi[i][0], hi[i][1], lo[i][0], lo[i][1]);
            }
      }
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
        for (int i = 0; i < kDimsAtOnce; ++i)
#pragma unroll
          for (int e = 0; e < 4; ++e) o[r][d + i][e] += sums[r][i][e];
    }
  }
};

}  // namespace attnd::kernels::cuda::generic

#endif  // ATTND_KERNELS_CUDA_GENERIC_PRODUCTS_CUH_
