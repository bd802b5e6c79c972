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
  using Element = typename T::Element;
  const ProblemDesc& p = work.problem;
  const Item& item = work.item;
  const int row = work.q_begin + 64 * consumer + (threadIdx.x & 127) / 2;
  if (row >= p.q_len) return;
  auto* target = static_cast<Element*>(p.o) + item.batch * p.o_desc.batch_stride +
                 item.q_head * p.o_desc.head_stride + row * p.o_desc.row_stride;
#pragma unroll 1
  for (int i = threadIdx.x & 1; i < p.head_dim; i += 2) target[i] = static_cast<Element>(0.0f);
  if (p.lse && (threadIdx.x & 1) == 0) {
    p.lse[item.batch * p.lse_batch_stride + item.q_head * p.lse_head_stride + row] = -INFINITY;
  }
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

// Four elements to columns [column, column + 4), cut at head_dim.
__device__ __forceinline__ void StoreCut(unsigned char* row, int column, uint2 w, int head_dim) {
  auto* target = reinterpret_cast<uint16_t*>(row);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = i < 2 ? w.x : w.y;
    if (column + i < head_dim) target[column + i] = static_cast<uint16_t>(word >> (16 * (i & 1)));
  }
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
      const float v = static_cast<float>(v_base[key * p.v_desc.row_stride + column]);
      if (isfinite(v)) continue;
#pragma unroll 1
      for (int row = row_begin; row < row_end; ++row) {
        Element& o = o_base[row * p.o_desc.row_stride + column];
        o = static_cast<Element>(static_cast<float>(o) + v);
      }
    }
  }
}

// `row` is the thread's first row in the problem, its second is 8 below. Returns false if a value
// of this thread's is not finite.
template <class T>
__device__ __forceinline__ bool StoreItem(float (&o)[T::kHeadDim / 2], const RowState& state,
                                          const Work& work, int row) {
  using Element = typename T::Element;
  const ProblemDesc& p = work.problem;
  const Item& item = work.item;
  const int q_len = p.q_len;
  const int head_dim = p.head_dim;
  // One decision for all stores: whole rows in pieces of 8 bytes, or element by element.
  const bool whole = p.aligned && head_dim == T::kHeadDim;
  const int64_t row_stride_bytes = p.o_desc.row_stride * 2;
  unsigned char* target =
      static_cast<unsigned char*>(p.o) +
      (item.batch * p.o_desc.batch_stride + item.q_head * p.o_desc.head_stride) * 2 +
      row * row_stride_bytes;
  float probe = 0;  // a NaN if something is not finite
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = state.sum[h];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const bool no_key = sum == 0.0f;
    const float inverse = 1.0f / sum;
    const bool stored = row + 8 * h < q_len;
    if (p.lse && stored && (threadIdx.x & 3) == 0) {
      p.lse[item.batch * p.lse_batch_stride + item.q_head * p.lse_head_stride + row + 8 * h] =
          no_key ? -INFINITY : (state.base[h] + log2f(sum)) * kLn2;
    }
#pragma unroll
    for (int n = 0; n < T::kHeadDim / 8; n += 2) {
      uint32_t words[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int first = 4 * (n + i) + 2 * h;
        if constexpr (T::kScan) probe = fmaf(o[first], 0.0f, fmaf(o[first + 1], 0.0f, probe));
        words[i] = no_key ? 0u : ptx::Pack2<Element>(o[first] * inverse, o[first + 1] * inverse);
      }
      const uint2 joined = JoinPairs(words[0], words[1]);
      const int column = 8 * n + JoinedColumn();
      if (!stored) continue;
      if (whole) {
        *reinterpret_cast<uint2*>(target + 2 * column) = joined;
      } else {
        StoreCut(target, column, joined, head_dim);
      }
    }
    target += 8 * row_stride_bytes;
  }
  return probe == 0.0f;
}

}  // namespace attnd::kernels::cuda::sm90a

#endif  // ATTND_KERNELS_CUDA_SM90A_EPILOGUE_CUH_
