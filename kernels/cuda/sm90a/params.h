// What a launch of the Hopper kernels is given: the same for host and device.
#ifndef ATTND_KERNELS_CUDA_SM90A_PARAMS_H_
#define ATTND_KERNELS_CUDA_SM90A_PARAMS_H_

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/params.h"

namespace attnd::kernels::cuda::sm90a {

// Q, K and V are read through the maps, (dim, row, head, batch) each. Rows of O are written in
// pieces of four elements (CanStore in tensor_map.h); desc.aligned is not used.
struct alignas(128) Problem {
  CUtensorMap q_map;
  CUtensorMap k_map;
  CUtensorMap v_map;
  ProblemDesc desc;
};

inline const ProblemDesc& DescOf(const Problem& problem) { return problem.desc; }
inline ProblemDesc& DescOf(Problem& problem) { return problem.desc; }

// By value up to this many; a kernel's parameters may take 32,764 bytes.
inline constexpr int kInlineProblems = 32;

struct LaunchParams {
  Problem inline_problems[kInlineProblems];
  const Problem* problems;  // null: inline
  int n_problems;
  int64_t n_items;
  // As kernels/cuda/params.h has them.
  unsigned long long* next_item;
  unsigned long long* poisoned_tiles;
};
static_assert(sizeof(LaunchParams) <= 32764);

#ifdef __CUDACC__
__device__ __forceinline__ const Problem* Problems(const LaunchParams& params) {
  return params.problems ? params.problems : params.inline_problems;
}
#endif

}  // namespace attnd::kernels::cuda::sm90a

#endif  // ATTND_KERNELS_CUDA_SM90A_PARAMS_H_
