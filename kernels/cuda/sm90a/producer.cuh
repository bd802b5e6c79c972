// The producer: one thread keeps the rings of Q, K and V full with the tensor copy engine.
//
// K runs one tile ahead of V, also across items, which is the order in which the consumers need
// them.
#ifndef ATTND_KERNELS_CUDA_SM90A_PRODUCER_CUH_
#define ATTND_KERNELS_CUDA_SM90A_PRODUCER_CUH_

#include <cstdint>

#include "kernels/cuda/sm90a/params.h"
#include "kernels/cuda/sm90a/shared.cuh"

namespace attnd::kernels::cuda::sm90a {

template <class T>
struct Producer {
  const LaunchParams& params;
  Shared<T>& shared;
  RingPlace<T::kQStages> q = {};
  RingPlace<T::kStages> k = {};
  RingPlace<T::kStages> v = {};
  bool v_pending = false;  // the next K tile goes first

  template <int kChunkBytes>
  __device__ __forceinline__ static void LoadChunks(unsigned char* tile, const CUtensorMap* map,
                                                    const uint64_t* barrier, int row, int head,
                                                    int batch) {
    const uint32_t address = ptx::SharedAddress(tile);
    ptx::BarrierArriveExpect(ptx::SharedAddress(barrier), T::kChunks * kChunkBytes);
#pragma unroll
    for (int chunk = 0; chunk < T::kChunks; ++chunk) {
      ptx::TensorLoad(address + chunk * kChunkBytes, map, ptx::SharedAddress(barrier), 64 * chunk,
                      row, head, batch);
    }
  }

  __device__ __forceinline__ void FlushV() {
    if (!v_pending) return;
    const PendingV& pending = shared.pending;
    v.WaitEmpty(shared.v_empty);
    const uint64_t* barrier =
        (T::kScan && pending.scan ? shared.v_landed : shared.v_full) + v.index();
    LoadChunks<T::kKvChunkBytes>(shared.v[v.index()], pending.map, barrier, pending.row,
                                 pending.head, pending.batch);
    v.Advance();
    v_pending = false;
  }

  __device__ __forceinline__ void LoadItem(const Work& work) {
    const Item& item = work.item;
    const Problem& problem = Problems(params)[item.problem];
    if (work.tiles.none()) {
      // The next item may wait for this V: nothing else would bring it.
      FlushV();
      return;
    }
    if (params.problems) {
      ptx::FenceTensorMap(&problem.q_map);
      ptx::FenceTensorMap(&problem.k_map);
      ptx::FenceTensorMap(&problem.v_map);
    }
    // With one place for Q the wait below is for the last scores of the item before, and V's last
    // tile must not wait with it.
    if constexpr (T::kQStages == 1) FlushV();
    q.WaitEmpty(shared.q_empty);
    LoadChunks<T::kQChunkBytes>(shared.q[q.index()], &problem.q_map, shared.q_full + q.index(),
                                work.q_begin, item.q_head, item.batch);
    q.Advance();
#pragma unroll 1
    for (int tile = work.tiles.last; tile >= work.tiles.first; --tile) {
      const int row = tile * T::kKvTile;
      k.WaitEmpty(shared.k_empty);
      LoadChunks<T::kKvChunkBytes>(shared.k[k.index()], &problem.k_map, shared.k_full + k.index(),
                                   row, work.kv_head, item.batch);
      k.Advance();
      FlushV();
      v_pending = true;
      shared.pending = {&problem.v_map, row, work.kv_head, item.batch,
                        work.careful && NeedsMask<T>(work, tile)};
    }
  }

  // Called by one thread.
  __device__ __forceinline__ void Run() {
    RingPlace<kItemSlots> slot;
    while (true) {
      slot.WaitFull(shared.item_full);
      const Work& work = shared.items[slot.index()];
      if (work.none_left) break;
      LoadItem(work);
      ptx::BarrierArrive(ptx::SharedAddress(shared.item_empty + slot.index()));
      slot.Advance();
    }
    FlushV();
  }
};

}  // namespace attnd::kernels::cuda::sm90a

#endif  // ATTND_KERNELS_CUDA_SM90A_PRODUCER_CUH_
