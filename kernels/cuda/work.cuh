// The work list of a launch: items are (problem, batch, head, query tile), found by arithmetic,
// handed out by one counter.
#ifndef ATTND_KERNELS_CUDA_WORK_CUH_
#define ATTND_KERNELS_CUDA_WORK_CUH_

#include <cstdint>

#include "kernels/cuda/params.h"

namespace attnd::kernels::cuda {

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

// Problems stand longest first. Where the mask makes a problem's tiles differ (kDescending), its
// heads come in sections, and within one the tiles with most keys come first, all heads of one tile
// row together: small_sections of section_heads each, then one of all other heads. Otherwise tiles
// of one head follow each other and share K/V. `desc_of(i)` gives problem i.
template <bool kDescending, class DescOf>
__device__ __forceinline__ Item ItemOf(const DescOf& desc_of, int n_problems, int64_t number) {
  int low = 0;
  int high = n_problems - 1;
  while (low < high) {  // the last problem whose first_item <= number
    const int middle = (low + high + 1) / 2;
    if (desc_of(middle).first_item <= number) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const ProblemDesc& p = desc_of(low);
  const auto local = static_cast<uint32_t>(number - p.first_item);
  const auto n_q_tiles = static_cast<uint32_t>(p.n_q_tiles);
  Item item;
  item.problem = low;
  uint32_t head;
  if constexpr (kDescending) {
    const auto section_heads = static_cast<uint32_t>(p.section_heads);
    const auto small_sections = static_cast<uint32_t>(p.small_sections);
    const uint32_t section = min(local / (section_heads * n_q_tiles), small_sections);
    const uint32_t first_head = section * section_heads;
    const uint32_t heads = section < small_sections
                               ? section_heads
                               : static_cast<uint32_t>(p.batch * p.q_heads) - first_head;
    const uint32_t rest = local - first_head * n_q_tiles;
    item.q_tile = static_cast<int>(n_q_tiles - 1 - rest / heads);
    head = first_head + rest % heads;
  } else {
    item.q_tile = static_cast<int>(local % n_q_tiles);
    head = local / n_q_tiles;
  }
  const auto q_heads = static_cast<uint32_t>(p.q_heads);
  item.batch = static_cast<int>(head / q_heads);
  item.q_head = static_cast<int>(head % q_heads);
  return item;
}

// Takes a number; the one thread of a block that calls this does so until it gets none. The block
// that takes the very last number (each block takes one past the end) puts the counter back to 0
// for the next launch.
template <class Params>
__device__ __forceinline__ int64_t TakeNumber(const Params& params) {
  const unsigned long long number = atomicAdd(params.next_item, 1ull);
  if (static_cast<int64_t>(number) == params.n_items + gridDim.x - 1) *params.next_item = 0;
  return static_cast<int64_t>(number);
}

// Lane by lane; `source` and `target` are aligned to 8 bytes. Called by the first threads of a
// block or a warp.
inline constexpr int kProblemWords = sizeof(ProblemDesc) / 8;
static_assert(sizeof(ProblemDesc) % 8 == 0 && kProblemWords <= 32);
__device__ __forceinline__ void CopyProblemWord(ProblemDesc& target, const ProblemDesc& source,
                                                int thread) {
  if (thread < kProblemWords) {
    reinterpret_cast<int64_t*>(&target)[thread] = reinterpret_cast<const int64_t*>(&source)[thread];
  }
}

}  // namespace attnd::kernels::cuda

#endif  // ATTND_KERNELS_CUDA_WORK_CUH_
