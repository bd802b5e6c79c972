// How a block of the generic kernel takes its next item.
#ifndef ATTND_KERNELS_CUDA_GENERIC_WORK_CUH_
#define ATTND_KERNELS_CUDA_GENERIC_WORK_CUH_

#include <cstdint>

#include "kernels/cuda/params.h"
#include "kernels/cuda/work.cuh"

namespace attnd::kernels::cuda::generic {

// Takes the next item into `assignment`; the whole block calls it, and holds nothing of the item
// before.
template <bool kDescending>
__device__ __forceinline__ void TakeItem(const LaunchParams& params, Assignment& assignment) {
  const ProblemDesc* problems = params.problems ? params.problems : params.inline_problems;
  const auto desc_of = [problems](int i) -> const ProblemDesc& { return problems[i]; };
  if (threadIdx.x == 0) {
    const int64_t number = TakeNumber(params);
    assignment.none_left = number >= params.n_items;
    if (!assignment.none_left) {
      assignment.item = ItemOf<kDescending>(desc_of, params.n_problems, number);
    }
  }
  __syncthreads();
  if (assignment.none_left) return;
  CopyProblemWord(assignment.problem, desc_of(assignment.item.problem),
                  static_cast<int>(threadIdx.x));
  __syncthreads();
}

}  // namespace attnd::kernels::cuda::generic

#endif  // ATTND_KERNELS_CUDA_GENERIC_WORK_CUH_
