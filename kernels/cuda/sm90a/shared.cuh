// A block's shared memory, and the rings through which its warps hand tiles and items on.
#ifndef ATTND_KERNELS_CUDA_SM90A_SHARED_CUH_
#define ATTND_KERNELS_CUDA_SM90A_SHARED_CUH_

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/family.h"
#include "kernels/cuda/params.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/sm90a/config.h"
#include "kernels/cuda/sm90a/ptx.cuh"
#include "kernels/cuda/work.cuh"

namespace attnd::kernels::cuda::sm90a {

template <class ElementT, KernelFamily kFamilyT, class ConfigT>
struct Traits : ConfigT {
  using Element = ElementT;
  static constexpr KernelFamily kFamily = kFamilyT;
  static constexpr bool kGeneral = kFamily == KernelFamily::kGeneral;
  // Only where a row may see less than its tile can V hold what must not reach it (scanner.cuh).
  static constexpr bool kScan = kFamily != KernelFamily::kFull;
};

// The key tiles that an item's rows see: last down to first; none if last < first.
struct KeyTiles {
  int first;
  int last;
  __device__ __forceinline__ bool none() const { return last < first; }
};
inline constexpr int kGiveBack = 1;  // the scanner took something out of the item's V
inline constexpr int kCounted = 2;

// What one consumer has of an item: its key tiles, last down to first (none if last < first), of
// which its rows see only part from masked_from on and up to masked_to.
struct alignas(16) Part {
  int last;
  int first;
  int masked_from;
  int masked_to;
  __device__ __forceinline__ bool none() const { return last < first; }
};
inline constexpr int kMaxConsumers = 3;

// An item, as the dealer hands it to the other warps.
struct Work : Assignment {
  Part parts[kMaxConsumers];
  KeyTiles tiles;
  bool careful;  // V tiles beside a mask go past the scanner
  int q_begin;
  int rows;  // of the query tile that there are
  int kv_head;
  // Row q_begin of the head's O and LSE; lse is null if not wanted.
  unsigned char* o;
  int64_t o_row_bytes;
  float* lse;
};
inline constexpr int kItemSlots = 4;

// A V tile that the producer has yet to load.
struct PendingV {
  const CUtensorMap* map;
  int row;
  int head;
  int batch;
  bool scan;  // it goes past the scanner
};

template <class T>
struct alignas(1024) Shared {
  unsigned char q[T::kQStages][T::kQBytes];
  unsigned char k[T::kStages][T::kKvBytes];
  unsigned char v[T::kStages][T::kKvBytes];
  // full: the copy engine has written it. empty: every warp is done with it.
  uint64_t q_full[T::kQStages], q_empty[T::kQStages];
  uint64_t k_full[T::kStages], k_empty[T::kStages];
  uint64_t v_full[T::kStages], v_empty[T::kStages];
  uint64_t v_landed[T::kStages];  // written, but not yet looked through
  uint64_t item_full[kItemSlots], item_empty[kItemSlots];
  // Set by a consumer: the item's output is not finite, which what a mask hides may have done. It
  // is dealt once more.
  int redo[kItemSlots];
  int give_back[kItemSlots];  // 0, kGiveBack, and then kCounted
  PendingV pending;           // the producer's own: there it costs no registers
  Work items[kItemSlots];
};

// A place in a ring of kCount, a power of two: how often its user has gone on. One register.
template <int kCount>
struct RingPlace {
  static_assert((kCount & (kCount - 1)) == 0);
  uint32_t count = 0;
  __device__ __forceinline__ int index() const { return static_cast<int>(count) & (kCount - 1); }
  __device__ __forceinline__ void Advance() { ++count; }
  // index() * stride, the same in all lanes, and known as such to the compiler.
  __device__ __forceinline__ uint32_t Offset(uint32_t stride) const {
    static_assert(kCount <= 2);
    if (kCount == 1) return 0;
    return __any_sync(~0u, count & 1) ? stride : 0;
  }

  // Until what the place stands at has been filled, or emptied; the first round finds everything
  // empty.
  __device__ __forceinline__ void WaitFull(const uint64_t* ring) const {
    ptx::BarrierWait(ptx::SharedAddress(ring + index()), (count / kCount) & 1);
  }
  __device__ __forceinline__ void WaitEmpty(const uint64_t* ring) const {
    ptx::BarrierWait(ptx::SharedAddress(ring + index()), ~(count / kCount) & 1);
  }
};
// A warp's arrival, when all its lanes have come here: one lane's, kWarpArrivals by the barrier's
// count. Every lane's in the build for tools, for racecheck does not see that __syncwarp puts what
// the other lanes have done before the one that arrives. (In the other build that costs ptxas its
// proof that products may run beside what follows.)
#ifdef ATTND_RANDOM_DELAYS
inline constexpr int kWarpArrivals = 32;
#else
inline constexpr int kWarpArrivals = 1;
#endif
__device__ __forceinline__ void WarpArrive(const uint64_t* ring, int index) {
  __syncwarp();
  if (kWarpArrivals == 32 || (threadIdx.x & 31) == 0) {
    ptx::BarrierArrive(ptx::SharedAddress(ring + index));
  }
}

// Called by one thread; the block meets at a barrier afterwards.
template <class T>
__device__ __forceinline__ void InitBarriers(Shared<T>& shared) {
  constexpr int kConsumerWarps = 4 * T::kConsumers;
  constexpr int kScannerWarps = T::kScan ? 2 : 0;
  const auto init = [](uint64_t* ring, int count, int arrivals) {
    for (int i = 0; i < count; ++i) ptx::BarrierInit(ptx::SharedAddress(ring + i), arrivals);
  };
  init(shared.q_full, T::kQStages, 1);
  init(shared.q_empty, T::kQStages, kConsumerWarps);
  init(shared.k_full, T::kStages, 1);
  init(shared.k_empty, T::kStages, kConsumerWarps);
  init(shared.v_full, T::kStages, 1);
  init(shared.v_empty, T::kStages, kConsumerWarps);
  init(shared.v_landed, T::kStages, 1);
  init(shared.item_full, kItemSlots, kWarpArrivals);
  init(shared.item_empty, kItemSlots, kWarpArrivals * (kConsumerWarps + kScannerWarps) + 1);
  ptx::BarrierInitFence();
}

// Those of the rows [begin, end).
template <class T>
__device__ __forceinline__ KeyTiles KeyTilesOf(const ProblemDesc& p, int begin, int end) {
  const int k_first = max(0, begin + p.band_lo);
  const int k_last = min(p.kv_len - 1, end - 1 + p.band_hi);
  if (end <= begin || k_last < k_first) return {0, -1};
  return {k_first / T::kKvTile, k_last / T::kKvTile};
}

// Of the rows [begin, end).
template <class T>
__device__ __forceinline__ Part PartOf(const ProblemDesc& p, int begin, int end) {
  const KeyTiles tiles = KeyTilesOf<T>(p, begin, end);
  const int first_hidden_above = max(0, min(p.kv_len, begin + p.band_hi + 1));
  const int last_hidden_below = end - 2 + p.band_lo;
  return {tiles.last, tiles.first, first_hidden_above / T::kKvTile,
          last_hidden_below < 0 ? -1 : last_hidden_below / T::kKvTile};
}

// True if a row of [begin, end) sees only part of this key tile.
template <class T>
__device__ __forceinline__ bool NeedsMask(const ProblemDesc& p, int begin, int end, int tile) {
  const int k_begin = tile * T::kKvTile;
  const int k_end = k_begin + T::kKvTile;
  if constexpr (T::kFamily == KernelFamily::kFull) return k_end > p.kv_len;
  return k_end > p.kv_len || end - 1 + p.band_lo > k_begin || k_end - 1 > begin + p.band_hi;
}
// The same for the block's whole query tile.
template <class T>
__device__ __forceinline__ bool NeedsMask(const Work& work, int tile) {
  return NeedsMask<T>(work.problem, work.q_begin, min(work.q_begin + T::kQTile, work.problem.q_len),
                      tile);
}

}  // namespace attnd::kernels::cuda::sm90a

#endif  // ATTND_KERNELS_CUDA_SM90A_SHARED_CUH_
