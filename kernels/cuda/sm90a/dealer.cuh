// The dealer warp: takes items and hands them to the block's other warps; deals an item once more,
// to be done carefully (scanner.cuh), where a consumer asks for it.
#ifndef ATTND_KERNELS_CUDA_SM90A_DEALER_CUH_
#define ATTND_KERNELS_CUDA_SM90A_DEALER_CUH_

#include <cstdint>

#include "kernels/cuda/sm90a/params.h"
#include "kernels/cuda/sm90a/shared.cuh"

namespace attnd::kernels::cuda::sm90a {

template <class T>
struct Dealer {
  const LaunchParams& params;
  Shared<T>& shared;
  RingPlace<kItemSlots> slot = {};
  int64_t number = 0;  // lane 0's: the next item

  __device__ __forceinline__ void Describe(Work& work) {
    const Problem* problems = Problems(params);
    const auto desc_of = [problems](int i) -> const ProblemDesc& { return problems[i].desc; };
    const int lane = threadIdx.x & 31;
    if (lane == 0) {
      work.item = ItemOf<T::kScan>(desc_of, params.n_problems, number);
      number = TakeNumber(params);  // arrives while this item is worked on
    }
    __syncwarp();
    CopyProblemWord(work.problem, desc_of(work.item.problem), lane);
    __syncwarp();
    const ProblemDesc& p = work.problem;
    const Item& item = work.item;
    const int begin = item.q_tile * T::kQTile;
    const int end = min(begin + T::kQTile, p.q_len);
    if (lane == 0) {
      for (int i = 0; i < T::kConsumers; ++i) {
        work.parts[i] = PartOf<T>(p, begin + 64 * i, min(begin + 64 * i + 64, end));
      }
      work.careful = false;
      work.q_begin = begin;
      work.rows = end - begin;
      work.kv_head = item.q_head / p.group;
      work.tiles = KeyTilesOf<T>(p, begin, end);
      work.o_row_bytes = p.o_desc.row_stride * 2;
      work.o = static_cast<unsigned char*>(p.o) + begin * work.o_row_bytes +
               (item.batch * p.o_desc.batch_stride + item.q_head * p.o_desc.head_stride) * 2;
      work.lse =
          p.lse ? p.lse + item.batch * p.lse_batch_stride + item.q_head * p.lse_head_stride + begin
                : nullptr;
    }
  }

  // An item of no rows: keeps the ring going while what is under way may yet have to be redone.
  __device__ __forceinline__ void DescribeNothing(Work& work) {
    if ((threadIdx.x & 31) != 0) return;
    for (int i = 0; i < T::kConsumers; ++i) work.parts[i] = {-1, 0, 0, 0};
    work.careful = false;
    work.q_begin = 0;
    work.rows = 0;
    work.tiles = {0, -1};
  }

  __device__ __forceinline__ void Run() {
    if ((threadIdx.x & 31) == 0) number = TakeNumber(params);
    int under_way = 0;  // items dealt and not known to be done
    while (true) {
      slot.WaitEmpty(shared.item_empty);
      Work& work = shared.items[slot.index()];
      const bool redo = T::kScan && slot.count >= kItemSlots && shared.redo[slot.index()] != 0;
      under_way = redo ? kItemSlots : max(under_way - 1, 0);
      const bool none_left = __shfl_sync(~0u, number >= params.n_items, 0);
      const bool over = none_left && (!T::kScan || under_way == 0);
      __syncwarp();
      if ((threadIdx.x & 31) == 0) {
        shared.redo[slot.index()] = 0;
        shared.give_back[slot.index()] = 0;
        work.none_left = over;
        if (redo) work.careful = true;
      }
      if (!redo && !none_left) {
        Describe(work);
        under_way = kItemSlots;
      } else if (!redo) {
        DescribeNothing(work);
      }
      WarpArrive(shared.item_full, slot.index());
      if (over) return;
      slot.Advance();
    }
  }
};

}  // namespace attnd::kernels::cuda::sm90a

#endif  // ATTND_KERNELS_CUDA_SM90A_DEALER_CUH_
