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

// fp32 as tf32 parts: x = hi + lo + rest, |lo| <= 2^-11 |x|, |rest| <= 2^-22 |x|. The products
// hi.hi, hi.lo and lo.hi carry fp32's accuracy through the matrix unit; lo.lo is below what fp32
// keeps.
//
// An infinity lives in hi alone, and takes no part in the products with a lo: those would bring it
// in with any sign. A NaN may be anywhere.
struct Split {
  uint32_t hi[4];
  uint32_t finite_hi[4];  // hi, but 0 for an infinity
  uint32_t lo[4];
};
__device__ __forceinline__ void SplitTf32(uint32_t bits, uint32_t& hi, uint32_t& finite_hi,
                                          uint32_t& lo) {
  const float x = __uint_as_float(bits);
  hi = ptx::RoundToTf32(x);
  const bool infinite = fabsf(x) == INFINITY;
  finite_hi = infinite ? 0u : hi;
  lo = infinite ? 0u : __float_as_uint(x - __uint_as_float(hi));
}
// What the matrix unit does not read of a lo part: its low 13 bits.
__device__ __forceinline__ uint32_t RestOf(uint32_t lo) {
  const float x = __uint_as_float(lo);
  return __float_as_uint(x - __uint_as_float(lo & 0xffffe000u));
}
__device__ __forceinline__ Split SplitAll(const uint32_t (&x)[4]) {
  Split s;
#pragma unroll
  for (int i = 0; i < 4; ++i) SplitTf32(x[i], s.hi[i], s.finite_hi[i], s.lo[i]);
  return s;
}

// The products of the parts, the small ones first, so that fewer roundings happen at the sum's full
// size. A caller runs all its independent sums through one before the next: each waits for the one
// before it.
inline constexpr int kSplitProducts = 3;
__device__ __forceinline__ void MmaSplit(int product, float (&c)[4], const Split& a, const Split& b,
                                         int half) {
  if (product == 0) ptx::Mma1688Tf32(c, a.lo, b.finite_hi[half], b.finite_hi[half + 1]);
  if (product == 1) ptx::Mma1688Tf32(c, a.finite_hi, b.lo[half], b.lo[half + 1]);
  if (product == 2) ptx::Mma1688Tf32(c, a.hi, b.hi[half], b.hi[half + 1]);
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
              MmaSplit(product, sums[r][n], a[r], b[n / 2], 2 * (n & 1));
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
        // Two keys of V a lane, in b[i]'s places 0 and 1; what lo leaves of them, in rest.
        Split b[kDimsAtOnce];
        uint32_t rest[kDimsAtOnce][2];
#pragma unroll
        for (int i = 0; i < kDimsAtOnce; ++i)
#pragma unroll
          for (int key = 0; key < 2; ++key) {
            const unsigned char* v = column + (8 * n + key) * C::kVRowBytes + 32 * (d + i);
            SplitTf32(*reinterpret_cast<const uint32_t*>(v), b[i].hi[key], b[i].finite_hi[key],
                      b[i].lo[key]);
            rest[i][key] = RestOf(b[i].lo[key]);
          }
          // One product more than for scores: with it the only key of a row is V to the bit.
#pragma unroll
        for (int i = 0; i < kDimsAtOnce; ++i)
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r) {
            ptx::Mma1688Tf32(sums[r][i], a[r][n].finite_hi, rest[i][0], rest[i][1]);
          }
#pragma unroll
        for (int product = 0; product < kSplitProducts; ++product)
#pragma unroll
          for (int i = 0; i < kDimsAtOnce; ++i)
#pragma unroll
            for (int r = 0; r < kRowTiles; ++r) MmaSplit(product, sums[r][i], a[r][n], b[i], 0);
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
