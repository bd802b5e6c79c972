// The generic forward kernel: persistent blocks of warps, each block one query tile at a time, K
// and V streamed through shared memory with cp.async, products on mma.sync, one pass with a running
// maximum.
//
// Time of one tile: V's copy flies under S = Q K^T, the next K's under the softmax and O += P V;
// two barriers. fp32 splits K and V between their copies and their products (split.cuh). Keys are
// walked from the last visible tile back, so that the tiles that need a mask come first.
#ifndef ATTND_KERNELS_CUDA_GENERIC_FLASH_FWD_CUH_
#define ATTND_KERNELS_CUDA_GENERIC_FLASH_FWD_CUH_

#include <cstdint>

#include "kernels/cuda/family.h"
#include "kernels/cuda/generic/config.h"
#include "kernels/cuda/generic/poison.cuh"
#include "kernels/cuda/generic/products.cuh"
#include "kernels/cuda/generic/products_f32.cuh"
#include "kernels/cuda/generic/softmax.cuh"
#include "kernels/cuda/generic/split.cuh"
#include "kernels/cuda/generic/tile.cuh"
#include "kernels/cuda/generic/work.cuh"

namespace attnd::kernels::cuda::generic {

template <class ElementT, int kHeadDimT, KernelFamily kFamilyT>
struct Traits {
  using Element = ElementT;
  static constexpr int kHeadDim = kHeadDimT;
  static constexpr KernelFamily kFamily = kFamilyT;
  static constexpr bool kGeneral = kFamily == KernelFamily::kGeneral;
  using C = Config<sizeof(Element), kHeadDim, kGeneral>;
  using P = Products<Element, kHeadDim, kGeneral>;
};

// One block's work on one query tile.
template <class T>
struct TileWorker {
  using C = typename T::C;
  using P = typename T::P;
  using Element = typename T::Element;
  static constexpr int kElementBytes = sizeof(Element);

  const ProblemDesc& p;  // in shared memory
  unsigned char* q_tile;
  unsigned char* k_tile;
  unsigned char* v_tile;

  int q_begin;
  int warp_row;  // in the tile
  const unsigned char* k_base;
  const unsigned char* v_base;
  FragmentPlace place;
  ScoreTransform transform;
  float to_log2;
  bool poisoned = false;

  float o[C::kRowTiles][P::kDimTiles][4];
  RowState<C::kRowTiles> state;

  // fp32 alone: a row of Q that this thread has split holds an infinity.
  bool q_infinite = false;
  using Splitter = RowSplitter<T::kHeadDim, C::kThreads>;
  __device__ __forceinline__ unsigned char* stage() const { return v_tile + C::kVBytes; }
  __device__ __forceinline__ float* q_factors() const {
    return reinterpret_cast<float*>(stage() + C::kStageBytes);
  }
  __device__ __forceinline__ float* k_factors() const { return q_factors() + C::kQTile; }
  __device__ __forceinline__ float* v_factors() const { return k_factors() + C::kKvTile; }

  __device__ __forceinline__ int RowBytes() const { return p.head_dim * kElementBytes; }

  // The rows of Q from q_begin on.
  __device__ __forceinline__ const unsigned char* QBase(const Item& item) const {
    return static_cast<const unsigned char*>(p.q) +
           (item.batch * p.q_desc.batch_stride + item.q_head * p.q_desc.head_stride +
            q_begin * p.q_desc.row_stride) *
               kElementBytes;
  }
  __device__ __forceinline__ SourceRows Source(const unsigned char* base, int64_t row_stride,
                                               int valid_rows) const {
    return {reinterpret_cast<const float*>(base), row_stride, valid_rows, p.head_dim,
            p.aligned != 0};
  }

  __device__ __forceinline__ void LoadQ(const Item& item) {
    if constexpr (C::kSplit) {
      q_infinite = Splitter().template SplitSource<C::kQTile, NotFiniteRows::kMark>(
          q_tile, q_factors(), Source(QBase(item), p.q_desc.row_stride, p.q_len - q_begin));
    } else {
      LoadTile<typename P::QLayout, C::kQTile, C::kThreads>(
          q_tile, QBase(item), p.q_desc.row_stride * kElementBytes, p.q_len - q_begin, RowBytes(),
          p.aligned);
    }
  }
  __device__ __forceinline__ void LoadK(int k_begin) {
    const int64_t stride = p.k_desc.row_stride * kElementBytes;
    if constexpr (C::kSplit) {
      Splitter().template Stage<C::kKvTile>(
          stage(), Source(k_base + k_begin * stride, p.k_desc.row_stride, p.kv_len - k_begin));
    } else {
      LoadTile<typename P::KLayout, C::kKvTile, C::kThreads>(
          k_tile, k_base + k_begin * stride, stride, p.kv_len - k_begin, RowBytes(), p.aligned);
    }
  }
  __device__ __forceinline__ void LoadV(int k_begin) {
    const int64_t stride = p.v_desc.row_stride * kElementBytes;
    if constexpr (C::kSplit) {
      Splitter().template Stage<C::kKvTile>(
          stage(), Source(v_base + k_begin * stride, p.v_desc.row_stride, p.kv_len - k_begin));
    } else {
      LoadTile<typename P::VLayout, C::kKvTile, C::kThreads>(
          v_tile, v_base + k_begin * stride, stride, p.kv_len - k_begin, RowBytes(), p.aligned);
    }
  }

  // True if a row of this query tile sees only part of the key tile.
  __device__ __forceinline__ bool NeedsMask(int k_begin, int q_end) const {
    const int k_end = k_begin + C::kKvTile;
    return k_end > p.kv_len || q_end - 1 + p.band_lo > k_begin || k_end - 1 > q_begin + p.band_hi;
  }

  template <bool kMasked>
  __device__ __forceinline__ void Step(int k_begin, bool last) {
    ptx::CpAsyncWait<0>();
    __syncthreads();  // K is here; every warp is done with the V before
    LoadV(k_begin);
    ptx::CpAsyncCommit();

    float s[C::kRowTiles][P::kKeyTiles][4];
    P::Scores(s, ptx::SharedAddress(q_tile), ptx::SharedAddress(k_tile), warp_row);
    if constexpr (T::kGeneral) TransformScores(s, place, k_begin, transform);
    if constexpr (kMasked) MaskScores(s, place, k_begin, p.kv_len, p.band_lo, p.band_hi);

    ptx::CpAsyncWait<0>();
    __syncthreads();  // V is here; every warp is done with this K
    if (!last) {
      LoadK(k_begin - C::kKvTile);
      ptx::CpAsyncCommit();
    }
    OnlineSoftmax(s, o, state, to_log2);
    if constexpr (kMasked && T::kFamily != KernelFamily::kFull) {
      poisoned |= TakeOutPoison<Element, typename P::VLayout, C::kKvTile, C::kThreads>(v_tile);
    }
    P::Accumulate(o, s, v_tile);
  }

  // fp32's step. A thread waits for its own copies alone, for it splits what it has copied: two
  // barriers a tile, as above. Each of them also gathers what the splits have found.
  template <bool kMasked>
  __device__ __forceinline__ void SplitStep(const Item& item, int k_begin, bool last) {
    ptx::CpAsyncWait<0>();
    const bool infinite = Splitter().template SplitStaged<C::kKvTile, NotFiniteRows::kMark>(
        k_tile, k_factors(), stage());
    LoadV(k_begin);
    ptx::CpAsyncCommit();
    // K's planes are here; every warp is done with the V before.
    const bool infinities = __syncthreads_or(infinite || q_infinite);

    float s[C::kRowTiles][P::kKeyTiles][4];
    P::Scores(s, ptx::SharedAddress(q_tile), ptx::SharedAddress(k_tile), warp_row,
              q_factors() + warp_row, k_factors());
    if (infinities) RestoreInfinities(s, item, k_begin);
    if constexpr (T::kGeneral) TransformScores(s, place, k_begin, transform);
    if constexpr (kMasked) MaskScores(s, place, k_begin, p.kv_len, p.band_lo, p.band_hi);
    OnlineSoftmax(s, o, state, to_log2);

    ptx::CpAsyncWait<0>();
    const bool not_finite = Splitter().template SplitStaged<C::kKvTile, NotFiniteRows::kIgnore>(
        v_tile, v_factors(), stage());
    if (!last) {
      LoadK(k_begin - C::kKvTile);
      ptx::CpAsyncCommit();
    }
    // V's planes are here; every warp is done with this K.
    poisoned |= __syncthreads_or(not_finite) != 0;
    P::Accumulate(o, s, ptx::SharedAddress(v_tile), v_factors());
  }

  // Scores of the rows and keys that hold an infinity, which the planes do not: anew, from memory.
  // Rare, and slow.
  __device__ __forceinline__ void RestoreInfinities(float (&s)[C::kRowTiles][P::kKeyTiles][4],
                                                    const Item& item, int k_begin) {
    const int lane = threadIdx.x & 31;
    const auto* q = reinterpret_cast<const float*>(QBase(item));
    const auto* k = reinterpret_cast<const float*>(k_base);
#pragma unroll 1
    for (int i = 0; i < C::kRowTiles * P::kKeyTiles * 4; ++i) {
      const int row = warp_row + 16 * (i / (P::kKeyTiles * 4)) + 8 * (i >> 1 & 1) + (lane >> 2);
      const int key = 8 * (i / 4 % P::kKeyTiles) + 2 * (lane & 3) + (i & 1);
      // A NaN is there already, by its factor; rows and keys that do not exist are finite.
      const float q_factor = q_factors()[row];
      const float k_factor = k_factors()[key];
      if (isnan(q_factor + k_factor) || (q_factor > 0 && k_factor > 0)) continue;
      if (q_begin + row >= p.q_len || k_begin + key >= p.kv_len) continue;
      const float score = ScoreWithInfinities(
          q + row * p.q_desc.row_stride, k + (k_begin + key) * p.k_desc.row_stride, p.head_dim);
#pragma unroll
      for (int r = 0; r < C::kRowTiles; ++r)
#pragma unroll
        for (int n = 0; n < P::kKeyTiles; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            if (i == (r * P::kKeyTiles + n) * 4 + e) s[r][n][e] = score;
          }
    }
  }

  template <bool kMasked>
  __device__ __forceinline__ void AnyStep(const Item& item, int k_begin, bool last) {
    if constexpr (C::kSplit) {
      SplitStep<kMasked>(item, k_begin, last);
    } else {
      Step<kMasked>(k_begin, last);
    }
  }

  // All key tiles that a row of this query tile sees, the last first.
  __device__ __forceinline__ void Run(const Item& item) {
    const int q_end = min(q_begin + C::kQTile, p.q_len);
    const int k_first = max(0, q_begin + p.band_lo);
    const int k_last = min(p.kv_len - 1, q_end - 1 + p.band_hi);
#pragma unroll
    for (int r = 0; r < C::kRowTiles; ++r)
#pragma unroll
      for (int d = 0; d < P::kDimTiles; ++d)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[r][d][e] = 0;
    state.Reset();
    if (k_last < k_first) return;

    const int first_tile = k_first / C::kKvTile;
    int tile = k_last / C::kKvTile;
    if constexpr (!C::kSplit) LoadQ(item);
    LoadK(tile * C::kKvTile);
    ptx::CpAsyncCommit();
    if constexpr (C::kSplit) LoadQ(item);  // K's copy flies under its split
    for (; tile >= first_tile; --tile) {
      const int k_begin = tile * C::kKvTile;
      if (NeedsMask(k_begin, q_end)) {
        AnyStep<true>(item, k_begin, tile == first_tile);
      } else {
        AnyStep<false>(item, k_begin, tile == first_tile);
      }
    }
  }

  // Adds x to a column of O's tile, in the rows [row_begin, row_end).
  __device__ __forceinline__ void AddToColumn(int column, int row_begin, int row_end, float x) {
    const int byte = column * kElementBytes;
#pragma unroll 1
    for (int row = row_begin; row < row_end; ++row) {
      auto* o_element = reinterpret_cast<Element*>(
          q_tile + P::OLayout::Offset(row - q_begin, byte >> 4) + (byte & 15));
      *o_element = ptx::FromFloat<Element>(ptx::ToFloat(*o_element) + x);
    }
  }
  __device__ __forceinline__ float VElement(int key, int column) const {
    return ptx::ToFloat(
        reinterpret_cast<const Element*>(v_base)[key * p.v_desc.row_stride + column]);
  }

  // Most keys are finite: several are looked at together.
  static constexpr int kScanKeys = 8;
  __device__ __forceinline__ bool AllFinite(int key, int column) const {
    bool finite = true;
#pragma unroll
    for (int i = 0; i < kScanKeys; ++i) finite &= isfinite(VElement(key + i, column)) != 0;
    return finite;
  }

  // What was taken out of V, added to the rows that see it: O's tile lies in Q's place. Halves take
  // it out of the tiles that need a mask, fp32 out of all. One thread a column.
  __device__ __forceinline__ void GiveBackPoison() {
    const int q_end = min(q_begin + C::kQTile, p.q_len);
    const int k_first = max(0, q_begin + p.band_lo);
    const int k_last = min(p.kv_len - 1, q_end - 1 + p.band_hi);
    for (int column = threadIdx.x; column < p.head_dim; column += C::kThreads) {
      float for_all_rows = 0;
      for (int key = k_first; key <= k_last; ++key) {
        if (!C::kSplit && !NeedsMask(key / C::kKvTile * C::kKvTile, q_end)) continue;
        if (key + kScanKeys <= k_last && AllFinite(key, column)) {
          key += kScanKeys - 1;
          continue;
        }
        const float v = VElement(key, column);
        if (isfinite(v)) continue;
        const int row_begin = max(q_begin, key - p.band_hi);
        const int row_end = min(q_end, key - p.band_lo + 1);
        if (row_begin == q_begin && row_end == q_end) {
          for_all_rows += v;
        } else {
          AddToColumn(column, row_begin, row_end, v);
        }
      }
      if (!isfinite(for_all_rows)) AddToColumn(column, q_begin, q_end, for_all_rows);
    }
    __syncthreads();
  }

  // A row that sees one key has that key's V for its O, to the bit, which two planes of fp16 do not
  // hold: the four threads of the row copy it.
  __device__ __forceinline__ void CopyOnlyKey(int row) {
    const int key = max(0, q_begin + row + p.band_lo);
    if (key != min(p.kv_len - 1, q_begin + row + p.band_hi)) return;
    const auto* v = reinterpret_cast<const float*>(v_base) + key * p.v_desc.row_stride;
#pragma unroll 1
    for (int pair = threadIdx.x & 3; 2 * pair < p.head_dim; pair += 4) {
      auto* target =
          reinterpret_cast<float*>(q_tile + P::OLayout::Offset(row, pair >> 1) + 8 * (pair & 1));
      target[0] = v[2 * pair];
      if (2 * pair + 1 < p.head_dim) target[1] = v[2 * pair + 1];
    }
  }

  // O = o / sum, through shared memory; LSE beside it. Ends with nothing of the tile's shared
  // memory in use.
  __device__ __forceinline__ void Store(const Item& item) {
    __syncthreads();  // Q's place becomes O's
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int r = 0; r < C::kRowTiles; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float sum = state.sum[r][h];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const bool no_key = sum == 0.0f;
        const float inverse = 1.0f / sum;
        const int row = warp_row + 16 * r + 8 * h + (lane >> 2);
#pragma unroll
        for (int d = 0; d < P::kDimTiles; ++d) {
          const float lo = no_key ? 0.0f : o[r][d][2 * h] * inverse;
          const float hi = no_key ? 0.0f : o[r][d][2 * h + 1] * inverse;
          const int byte = (8 * d + 2 * (lane & 3)) * kElementBytes;
          unsigned char* target = q_tile + P::OLayout::Offset(row, byte >> 4) + (byte & 15);
          if constexpr (kElementBytes == 4) {
            *reinterpret_cast<float2*>(target) = make_float2(lo, hi);
          } else {
            *reinterpret_cast<uint32_t*>(target) = ptx::Pack2<Element>(lo, hi);
          }
        }
        if constexpr (C::kSplit) {
          if (sum > 0 && sum < INFINITY) CopyOnlyKey(row);
        }
        if (p.lse && (lane & 3) == 0 && q_begin + row < p.q_len) {
          p.lse[item.batch * p.lse_batch_stride + item.q_head * p.lse_head_stride + q_begin + row] =
              no_key ? -INFINITY : (state.base[r][h] + log2f(sum)) * kLn2;
        }
      }
    __syncthreads();
    if (poisoned) GiveBackPoison();
    auto* base = static_cast<unsigned char*>(p.o) +
                 (item.batch * p.o_desc.batch_stride + item.q_head * p.o_desc.head_stride +
                  q_begin * p.o_desc.row_stride) *
                     kElementBytes;
    StoreTile<typename P::OLayout, C::kQTile, C::kThreads>(
        q_tile, base, p.o_desc.row_stride * kElementBytes, p.q_len - q_begin, RowBytes(),
        p.aligned);
  }
};

template <class T>
__device__ __forceinline__ void ComputeItem(const Assignment& assignment, unsigned char* shared,
                                            unsigned long long* poisoned_tiles) {
  using C = typename T::C;
  constexpr int64_t kElementBytes = sizeof(typename T::Element);
  const ProblemDesc& p = assignment.problem;
  const Item& item = assignment.item;
  const int lane = threadIdx.x & 31;
  const int kv_head = item.q_head / p.group;
  TileWorker<T> worker{p, shared, shared + C::kQBytes, shared + C::kQBytes + C::kKBytes};
  worker.q_begin = item.q_tile * C::kQTile;
  worker.warp_row = (threadIdx.x >> 5) * 16 * C::kRowTiles;
  worker.k_base =
      static_cast<const unsigned char*>(p.k) +
      (item.batch * p.k_desc.batch_stride + kv_head * p.k_desc.head_stride) * kElementBytes;
  worker.v_base =
      static_cast<const unsigned char*>(p.v) +
      (item.batch * p.v_desc.batch_stride + kv_head * p.v_desc.head_stride) * kElementBytes;
  worker.place = {worker.q_begin + worker.warp_row + (lane >> 2), 2 * (lane & 3)};
  if constexpr (T::kGeneral) {
    worker.transform = {p.scale, p.softcap, p.alibi_slopes ? p.alibi_slopes[item.q_head] : 0.0f,
                        p.kv_len - p.q_len, p.alibi_slopes != nullptr};
    worker.to_log2 = 1.0f;
  } else {
    worker.to_log2 = p.scale * kLog2E;
  }
  worker.Run(item);
  worker.Store(item);
  if (worker.poisoned && threadIdx.x == 0) atomicAdd(poisoned_tiles, 1ull);
}

template <class T>
__device__ __forceinline__ void FlashForward(const LaunchParams& params) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Assignment assignment;
  while (true) {
    TakeItem<T::kFamily != KernelFamily::kFull>(params, assignment);
    if (assignment.none_left) return;
    ComputeItem<T>(assignment, shared, params.poisoned_tiles);
    __syncthreads();
  }
}

}  // namespace attnd::kernels::cuda::generic

#endif  // ATTND_KERNELS_CUDA_GENERIC_FLASH_FWD_CUH_
