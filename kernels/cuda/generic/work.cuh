// The work list of a launch: items are (problem, batch, head, query tile), found by arithmetic,
// handed out by one counter.
#ifndef ATTND_KERNELS_CUDA_GENERIC_WORK_CUH_
#define ATTND_KERNELS_CUDA_GENERIC_WORK_CUH_

#include <cstdint>

#include "kernels/cuda/params.h"

namespace attnd::kernels::cuda::generic {

struct Item {
  int problem;
  int batch;
  int q_head;
  int q_tile;
};

// What a block works on, in shared memory: read when needed, so that it holds no registers.
struct Assignment {
  ProblemDesc problem;
  Item item;
  bool none_left;
};

__device__ __forceinline__ const ProblemDesc* Problems(const LaunchParams& params) {
  return params.problems ? params.problems : params.inline_problems;
}

// Problems stand longest first, and within one the tiles with most keys come first where the mask
// makes them differ (kDescending), all heads of one tile row together; otherwise tiles of one head
// follow each other and share K/V.
template <bool kDescending>
__device__ __forceinline__ Item ItemOf(const LaunchParams& params, int64_t number) {
  const ProblemDesc* problems = Problems(params);
  int low = 0;
  int high = params.n_problems - 1;
  while (low < high) {  // the last problem whose first_item <= number
    const int middle = (low + high + 1) / 2;
    if (problems[middle].first_item <= number) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const ProblemDesc& p = problems[low];
  const int64_t local = number - p.first_item;
  const int64_t heads = static_cast<int64_t>(p.batch) * p.q_heads;
  Item item;
  item.problem = low;
  int64_t head;
  if constexpr (kDescending) {
    item.q_tile = p.n_q_tiles - 1 - static_cast<int>(local / heads);
    head = local % heads;
  } else {
    item.q_tile = static_cast<int>(local % p.n_q_tiles);
    head = local / p.n_q_tiles;
  }
  item.batch = static_cast<int>(head / p.q_heads);
  item.q_head = static_cast<int>(head % p.q_heads);
  return item;
}

// Takes the next item into `assignment`; the whole block calls it, and holds nothing of the item
// before. The block that takes the very last number (each block takes one past the end) puts the
// counter back to 0 for the next launch.
template <bool kDescending>
__device__ __forceinline__ void TakeItem(const LaunchParams& params, Assignment& assignment) {
  if (threadIdx.x == 0) {
    const unsigned long long number = atomicAdd(params.next_item, 1ull);
    if (number == params.n_items + gridDim.x - 1) *params.next_item = 0;
    assignment.none_left = number >= params.n_items;
    if (!assignment.none_left) assignment.item = ItemOf<kDescending>(params, number);
  }
  __syncthreads();
  if (assignment.none_left) return;
  constexpr int kWords = sizeof(ProblemDesc) / 8;
  static_assert(sizeof(ProblemDesc) % 8 == 0 && kWords <= 32);
  if (threadIdx.x < kWords) {
    const auto* source =
        reinterpret_cast<const int64_t*>(Problems(params) + assignment.item.problem);
    reinterpret_cast<int64_t*>(&assignment.problem)[threadIdx.x] = source[threadIdx.x];
  }
  __syncthreads();
}

}  // namespace attnd::kernels::cuda::generic

#endif  // ATTND_KERNELS_CUDA_GENERIC_WORK_CUH_
