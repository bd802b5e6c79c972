// fp32 through fp16 products: rows are split, once a tile, into two planes of fp16 in shared
// memory.
//
//   x * to = hi + lo + rest,   hi = fp16(x * to),   lo = fp16(x * to - hi),   |rest| <= 2^-22 |x *
//   to|
//
// `to` is a power of two, one a row, that brings the row's largest number to [2^14, 2^15): fp16
// reaches from there down to 2^-24, so that a number 2^-17 times its row's largest still has all 22
// bits, and a smaller one is wrong by at most 2^-39 of the largest. hi.hi + hi.lo + lo.hi carry
// fp32's accuracy through the matrix unit; lo.lo is below what fp32 keeps. fp16 and tf32 have the
// same 11 significant bits, but fp16's products run at twice the rate.
#ifndef ATTND_KERNELS_CUDA_GENERIC_SPLIT_CUH_
#define ATTND_KERNELS_CUDA_GENERIC_SPLIT_CUH_

#include <cstdint>

#include "kernels/cuda/generic/tile.cuh"
#include "kernels/cuda/ptx.cuh"

namespace attnd::kernels::cuda::generic {

// Powers of two that bring `max` to [2^14, 2^15), and back. Both are normal numbers: where max is
// below 2^-112 it stays below 2^14.
struct Powers {
  float to;
  float from;
};
__device__ __forceinline__ Powers PowersFor(float max) {
  const int exponent = __float_as_int(max) >> 23;      // biased by 127; max is finite and >= 0
  const int to = min(14 + 127 + 127 - exponent, 253);  // biased too
  return {__int_as_float(to << 23), __int_as_float((254 - to) << 23)};
}

// Two numbers as fp16 pairs.
__device__ __forceinline__ void SplitPair(float x, float y, uint32_t& hi, uint32_t& lo) {
  hi = ptx::Pack2<Half>(x, y);
  lo = ptx::Pack2<Half>(x - ptx::ToFloat(Half{static_cast<uint16_t>(hi)}),
                        y - ptx::ToFloat(Half{static_cast<uint16_t>(hi >> 16)}));
}

// fp32 rows in global memory. Rows from valid_rows on and columns from head_dim on count as zero
// and are not read.
struct SourceRows {
  const float* base;
  int64_t stride;  // elements
  int valid_rows;
  int head_dim;
  bool aligned;  // every row starts at a multiple of 16 bytes

  // Columns [4 * chunk, 4 * chunk + 4) that exist.
  __device__ __forceinline__ int Columns(int chunk) const {
    return min(4, max(0, head_dim - 4 * chunk));
  }
  __device__ __forceinline__ const float* At(int row, int chunk) const {
    return base + row * stride + 4 * chunk;
  }
  __device__ __forceinline__ float4 Load(int row, int chunk) const {
    const int columns = row < valid_rows ? Columns(chunk) : 0;
    const float* x = At(row, chunk);
    if (aligned && columns == 4) return *reinterpret_cast<const float4*>(x);
    return make_float4(columns > 0 ? x[0] : 0.0f, columns > 1 ? x[1] : 0.0f,
                       columns > 2 ? x[2] : 0.0f, columns > 3 ? x[3] : 0.0f);
  }
};

// What a split does with a row that holds NaN or infinity; its planes hold 0 in their places.
enum class NotFiniteRows {
  kMark,    // its factor is NaN if it holds a NaN, negative if it holds an infinity alone
  kIgnore,  // its factor is that of the others
};

// Rows dealt to threads: eight lanes a row, each with every eighth 16-byte chunk. A thread splits
// what it has copied itself, so that its copies need no barrier, and its part of the staging space
// may lie anywhere.
template <int kHeadDim, int kThreads>
struct RowSplitter {
  static constexpr int kLanes = 8;
  static constexpr int kRowsPerPass = kThreads / kLanes;
  static constexpr int kChunks = kHeadDim / (4 * kLanes);  // a lane
  static_assert(kHeadDim % (4 * kLanes) == 0 && kRowsPerPass % 8 == 0);
  // Rows that a thread splits side by side: 32 registers hold them.
  static constexpr int kMaxPasses = kChunks > 4 ? 1 : kChunks > 2 ? 2 : 4;
  using Plane = SwizzledLayout<kHeadDim * 2>;

  // Lanes 0-7 and 8-15 take rows 4 apart: their 64 bytes of a plane then lie in different banks.
  const int thread = ptx::ThreadIndexAnew();
  const int lane = thread % kLanes;
  const int first_row =
      (thread / kLanes & ~7) + 4 * (thread / kLanes & 1) + (thread / kLanes >> 1 & 3);

  __device__ __forceinline__ int Chunk(int i) const { return lane + kLanes * i; }
  __device__ __forceinline__ float4* Slot(unsigned char* stage, int pass, int i) const {
    return reinterpret_cast<float4*>(stage) + (pass * kChunks + i) * kThreads + thread;
  }

  // Begins to copy kRows rows to `stage`; the caller commits.
  template <int kRows>
  __device__ __forceinline__ void Stage(unsigned char* stage, const SourceRows& source) const {
    constexpr int kPasses = kRows / kRowsPerPass;
    static_assert(kRows % kRowsPerPass == 0);
    if (source.aligned && source.head_dim == kHeadDim && source.valid_rows >= kRows) {
      const float* row = source.At(first_row, lane);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
          ptx::CpAsync16(ptx::SharedAddress(Slot(stage, pass, i)), row + 4 * kLanes * i, false);
        }
        row += kRowsPerPass * source.stride;
      }
      return;
    }
#pragma unroll 1
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = first_row + pass * kRowsPerPass;
#pragma unroll 1
      for (int i = 0; i < kChunks; ++i) {
        const int columns = row < source.valid_rows ? source.Columns(Chunk(i)) : 0;
        if (source.aligned && (columns == 4 || columns == 0)) {
          ptx::CpAsync16(ptx::SharedAddress(Slot(stage, pass, i)),
                         columns == 0 ? source.base : source.At(row, Chunk(i)), columns == 0);
        } else {
          *Slot(stage, pass, i) = source.Load(row, Chunk(i));
        }
      }
    }
  }

  // Splits what Stage brought, when the thread has waited for it: hi into the plane at `planes`, lo
  // into the one kRows rows below. Returns whether a row of this thread holds what kNotFinite is
  // about: NaN or infinity; for kMark an infinity and no NaN.
  template <int kRows, NotFiniteRows kNotFinite>
  __device__ __forceinline__ bool SplitStaged(unsigned char* planes, float* factors,
                                              unsigned char* stage) const {
    return SplitAll<kRows, kNotFinite>(planes, factors,
                                       [&](int pass, int i) { return *Slot(stage, pass, i); });
  }

  // The same straight from global memory.
  template <int kRows, NotFiniteRows kNotFinite>
  __device__ __forceinline__ bool SplitSource(unsigned char* planes, float* factors,
                                              const SourceRows& source) const {
    return SplitAll<kRows, kNotFinite>(planes, factors, [&](int pass, int i) {
      return source.Load(first_row + pass * kRowsPerPass, Chunk(i));
    });
  }

 private:
  template <int kRows, NotFiniteRows kNotFinite, class Load>
  __device__ __forceinline__ bool SplitAll(unsigned char* planes, float* factors,
                                           const Load& load) const {
    constexpr int kAllPasses = kRows / kRowsPerPass;
    constexpr int kPasses = kAllPasses < kMaxPasses ? kAllPasses : kMaxPasses;
    static_assert(kAllPasses % kPasses == 0);
    bool found = false;
#pragma unroll 1
    for (int first = 0; first < kAllPasses; first += kPasses) {
      float4 x[kPasses][kChunks];
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass)
#pragma unroll
        for (int i = 0; i < kChunks; ++i) x[pass][i] = load(first + pass, i);
      found |= SplitRows<kRows, kNotFinite>(planes, factors, first_row + first * kRowsPerPass, x);
    }
    return found;
  }

  // The largest magnitude of each row, NaN if it holds one.
  template <int kPasses>
  __device__ static __forceinline__ void RowMax(const float4 (&x)[kPasses][kChunks],
                                                float (&max)[kPasses]) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      float chunk_max[kChunks];
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const float4& c = x[pass][i];
        chunk_max[i] =
            ptx::MaxNaN(ptx::MaxNaN(fabsf(c.x), fabsf(c.y)), ptx::MaxNaN(fabsf(c.z), fabsf(c.w)));
      }
      max[pass] = chunk_max[0];
#pragma unroll
      for (int i = 1; i < kChunks; ++i) max[pass] = ptx::MaxNaN(max[pass], chunk_max[i]);
    }
#pragma unroll
    for (int lanes = 1; lanes < kLanes; lanes *= 2)
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        max[pass] = ptx::MaxNaN(max[pass], __shfl_xor_sync(~0u, max[pass], lanes));
      }
  }

  template <int kPlaneRows, NotFiniteRows kNotFinite, int kPasses>
  __device__ __forceinline__ bool SplitRows(unsigned char* planes, float* factors, int row,
                                            float4 (&x)[kPasses][kChunks]) const {
    float all_max[kPasses], max[kPasses];
    RowMax(x, all_max);
    bool finite = true;
    bool infinite = false;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      max[pass] = all_max[pass];
      finite &= all_max[pass] < INFINITY;
      infinite |= all_max[pass] == INFINITY;
    }
    if (__any_sync(~0u, !finite)) {
      TakeOutNotFinite(x);
      RowMax(x, max);
    }
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass, row += kRowsPerPass) {
      const Powers powers = PowersFor(max[pass]);
      unsigned char* const target = planes + row * Plane::kPitchBytes;
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const int byte = (((Chunk(i) >> 1) ^ (row & 7)) << 4) + ((Chunk(i) & 1) << 3);
        const float4& c = x[pass][i];
        uint2 hi, lo;
        SplitPair(c.x * powers.to, c.y * powers.to, hi.x, lo.x);
        SplitPair(c.z * powers.to, c.w * powers.to, hi.y, lo.y);
        *reinterpret_cast<uint2*>(target + byte) = hi;
        *reinterpret_cast<uint2*>(target + byte + kPlaneRows * Plane::kPitchBytes) = lo;
      }
      if (lane == 0) {
        float factor = powers.from;
        if constexpr (kNotFinite == NotFiniteRows::kMark) {
          if (!(all_max[pass] < INFINITY)) factor = isnan(all_max[pass]) ? all_max[pass] : -factor;
        }
        factors[row] = factor;
      }
    }
    return kNotFinite == NotFiniteRows::kMark ? infinite : !finite;
  }

  template <int kPasses>
  __device__ static __forceinline__ void TakeOutNotFinite(float4 (&x)[kPasses][kChunks]) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass)
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        float4& c = x[pass][i];
        c = make_float4(isfinite(c.x) ? c.x : 0, isfinite(c.y) ? c.y : 0, isfinite(c.z) ? c.z : 0,
                        isfinite(c.w) ? c.w : 0);
      }
  }
};

}  // namespace attnd::kernels::cuda::generic

#endif  // ATTND_KERNELS_CUDA_GENERIC_SPLIT_CUH_
