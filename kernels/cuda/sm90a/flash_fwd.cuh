// The Hopper forward kernel: persistent blocks; one thread feeds shared memory through the tensor
// copy engine, two or three warpgroups compute. README.md beside this has the schedule and what was
// tried.
#ifndef ATTND_KERNELS_CUDA_SM90A_FLASH_FWD_CUH_
#define ATTND_KERNELS_CUDA_SM90A_FLASH_FWD_CUH_

#include "kernels/cuda/sm90a/consumer.cuh"
#include "kernels/cuda/sm90a/dealer.cuh"
#include "kernels/cuda/sm90a/producer.cuh"
#include "kernels/cuda/sm90a/scanner.cuh"

namespace attnd::kernels::cuda::sm90a {

template <class T>
__device__ __forceinline__ void FlashForward(const LaunchParams& params) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<T>*>(memory);
  if (threadIdx.x == 0) InitBarriers(shared);
  __syncthreads();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    ptx::GiveRegisters<T::kProducerRegisters>();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp == 0) {
      if ((threadIdx.x & 31) == 0) Producer<T>{params, shared}.Run();
    } else if (warp == 1) {
      Dealer<T>{params, shared}.Run();
    } else if constexpr (T::kScan) {
      Scanner<T>{shared, static_cast<int>(threadIdx.x) - 64}.Run();
    }
  } else {
    ptx::TakeRegisters<T::kConsumerRegisters>();
    const int consumer = warpgroup - 1;
    Consumer<T>{shared, consumer, {consumer}}.Run(params.poisoned_tiles);
  }
}

}  // namespace attnd::kernels::cuda::sm90a

#endif  // ATTND_KERNELS_CUDA_SM90A_FLASH_FWD_CUH_
