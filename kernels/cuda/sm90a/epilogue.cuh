// The end of an item: O = o / sum and LSE, from registers to memory.
#ifndef ATTND_KERNELS_CUDA_SM90A_EPILOGUE_CUH_
#define ATTND_KERNELS_CUDA_SM90A_EPILOGUE_CUH_

#include <cstdint>

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/sm90a/shared.cuh"
#include "kernels/cuda/sm90a/softmax.cuh"

namespace attnd::kernels::cuda::sm90a {

// The rows of an item's part that see no key.
template <class T>
__device__ __forceinline__ void StoreNothing(const Work& work, int consumer) {
  const int row = 64 * consumer + (threadIdx.x & 127) / 2;
  if (row >= work.rows) return;
  auto* const target = reinterpret_cast<uint16_t*>(work.o + row * work.o_row_bytes);
#pragma unroll 1
  for (int i = threadIdx.x & 1; i < work.problem.head_dim; i += 2) target[i] = 0;
  if (work.lse != nullptr && (threadIdx.x & 1) == 0) work.lse[row] = -INFINITY;
}

// Lanes t of four hold columns 2 t and 2 t + 1 of two tiles of eight, in `a` and `b`. Afterwards
// the even ones hold four adjacent columns of the first tile, the odd ones of the second, and the
// four together 32 bytes of a row.
__device__ __forceinline__ uint2 JoinPairs(uint32_t a, uint32_t b) {
  const bool odd = threadIdx.x & 1;
  const uint32_t received = __shfl_xor_sync(~0u, odd ? a : b, 1);
  return odd ? make_uint2(received, b) : make_uint2(a, received);
}
// The column that JoinPairs' first element belongs to, in the two tiles.
__device__ __forceinline__ int JoinedColumn() {
  return 8 * (threadIdx.x & 1) + 4 * (threadIdx.x >> 1 & 1);
}

// What the scanner took out of V, added to the rows that see it, in memory: 16 rows of this warp,
// from warp_row on, which it has just stored.
template <class T>
__device__ __forceinline__ void GiveBackPoison(const Work& work, int warp_row) {
  using Element = typename T::Element;
  const ProblemDesc& p = work.problem;
  const Item& item = work.item;
  const auto* v_base = static_cast<const Element*>(p.v) + item.batch * p.v_desc.batch_stride +
                       work.kv_head * p.v_desc.head_stride;
  auto* o_base = static_cast<Element*>(p.o) + item.batch * p.o_desc.batch_stride +
                 item.q_head * p.o_desc.head_stride;
  const KeyTiles tiles = work.tiles;
  const int k_end = min(p.kv_len, (tiles.last + 1) * T::kKvTile);
  __syncwarp();
#pragma unroll 1
  for (int key = tiles.first * T::kKvTile; key < k_end; ++key) {
    if (!NeedsMask<T>(work, key / T::kKvTile)) continue;
    const int row_begin = max(warp_row, key - p.band_hi);
    const int row_end = min(min(warp_row + 16, p.q_len), key - p.band_lo + 1);
#pragma unroll 1
    for (int column = threadIdx.x & 31; column < p.head_dim; column += 32) {
      const float v = ptx::ToFloat(v_base[key * p.v_desc.row_stride + column]);
      if (isfinite(v)) continue;
#pragma unroll 1
      for (int row = row_begin; row < row_end; ++row) {
        Element& o = o_base[row * p.o_desc.row_stride + column];
        o = ptx::FromFloat<Element>(ptx::ToFloat(o) + v);
      }
    }
  }
}

// `row` is the thread's first one in the item's query tile, its second is 8 below. Rows of O are in
// whole pieces of four elements. Returns false if a value of this thread's is not finite.
template <class T>
__device__ __forceinline__ bool StoreItem(float (&o)[T::kHeadDim / 2], const RowState& state,
                                          const Work& work, int row) {
  using Element = typename T::Element;
  constexpr int kPairs = T::kHeadDim / 16;
  float sum[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) sum[h] = state.sum[h] + __shfl_xor_sync(~0u, state.sum[h], 1);
#pragma unroll
  for (int h = 0; h < 2; ++h) sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
  const int rows_left = work.rows - row;
  if (work.lse != nullptr && (threadIdx.x & 3) == 0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float lse = sum[h] == 0.0f ? -INFINITY : (state.base[h] + __log2f(sum[h])) * kLn2;
      if (rows_left > 8 * h) work.lse[row + 8 * h] = lse;
    }
  }
  // A row that sees no key is 0, whatever the products made of hidden values.
  if (__any_sync(~0u, sum[0] == 0.0f || sum[1] == 0.0f)) {
#pragma unroll
    for (int i = 0; i < T::kHeadDim / 2; ++i) {
      if (sum[(i >> 1) & 1] == 0.0f) o[i] = 0.0f;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) sum[h] = sum[h] == 0.0f ? 1.0f : sum[h];
  }
  uint2 pieces[2][kPairs];
  uint32_t probe = 0;  // a NaN in one of its halves if something is not finite
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float inverse = ptx::Reciprocal(sum[h]);
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      uint32_t words[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int first = 4 * (2 * n + i) + 2 * h;
        words[i] = ptx::Pack2<Element>(o[first] * inverse, o[first + 1] * inverse);
        if constexpr (T::kScan) probe = ptx::ProbeFinite<Element>(words[i], probe);
      }
      pieces[h][n] = JoinPairs(words[0], words[1]);
    }
  }
  const int columns_left = work.problem.head_dim - JoinedColumn();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    unsigned char* const target = work.o + (row + 8 * h) * work.o_row_bytes + JoinedColumn() * 2;
    if (rows_left > 8 * h) {
#pragma unroll
      for (int n = 0; n < kPairs; ++n) {
        if (16 * n < columns_left) ptx::StoreGlobal(target + 32 * n, pieces[h][n]);
      }
    }
  }
  return (probe & 0x7fff7fffu) == 0;
}

}  // namespace attnd::kernels::cuda::sm90a

#endif  // ATTND_KERNELS_CUDA_SM90A_EPILOGUE_CUH_
