// The instructions of sm_90a that kernels use: barriers in shared memory, the tensor copy engine,
// register budgets. wgmma.cuh has the matrix products.
#ifndef ATTND_KERNELS_CUDA_SM90A_PTX_CUH_
#define ATTND_KERNELS_CUDA_SM90A_PTX_CUH_

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/element.cuh"

namespace attnd::kernels::cuda::ptx {

// A build with ATTND_RANDOM_DELAYS waits for a random while before and after every barrier: what
// the bits must not depend on.
__device__ __forceinline__ void RandomDelay() {
#ifdef ATTND_RANDOM_DELAYS
  uint32_t now;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(now));
  uint32_t x = (now ^ (threadIdx.x / 32 * 0x9e3779b9u) ^ (blockIdx.x * 0x85ebca6bu)) * 0xc2b2ae35u;
  x ^= x >> 15;
  x = __shfl_sync(__activemask(), x, __ffs(__activemask()) - 1);
  if ((x & 3) == 0) __nanosleep((x >> 8) & 4095);
#endif
}

// An mbarrier in shared memory, by its address. Phases alternate in parity, 0 first.
__device__ __forceinline__ void BarrierInit(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes BarrierInit visible to the copy engine. The block meets at a barrier afterwards.
__device__ __forceinline__ void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void BarrierArrive(uint32_t barrier) {
  RandomDelay();
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and holds the phase open until `bytes` more have been copied.
__device__ __forceinline__ void BarrierArriveExpect(uint32_t barrier, int bytes) {
  RandomDelay();
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Returns once the phase of this parity is over.
__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
  RandomDelay();
}

// Named barriers of the multiprocessor; 0 is __syncthreads.
__device__ __forceinline__ void NamedSync(int id, int threads) {
  RandomDelay();
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void NamedArrive(int id, int threads) {
  RandomDelay();
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ bool NamedAny(int id, int threads, bool value) {
  uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.u32 p, %3, 0;\n"
      "bar.red.or.pred q, %1, %2, p;\n"
      "selp.u32 %0, 1, 0, q;\n"
      "}"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(value))
      : "memory");
  return any != 0;
}

// What this thread wrote to shared memory becomes visible to the matrix unit and the copy engine. A
// barrier follows.
__device__ __forceinline__ void FenceAsyncProxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A tensor map that a copy wrote to device memory, before its first use by this block.
__device__ __forceinline__ void FenceTensorMap(const CUtensorMap* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}
// A box of a tensor (dim, row, head, batch) to shared memory; `barrier` gets its bytes. Outside the
// tensor: zeros.
__device__ __forceinline__ void TensorLoad(uint32_t shared, const CUtensorMap* map,
                                           uint32_t barrier, int dim, int row, int head,
                                           int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(dim), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

// To global memory: said so, the address needs no look.
__device__ __forceinline__ void StoreGlobal(void* target, uint2 value) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(target)),
               "r"(value.x), "r"(value.y)
               : "memory");
}
// probe + 0 * word, two 16-bit values each: 0 for as long as all words are finite, then NaN.
template <class Element>
__device__ __forceinline__ uint32_t ProbeFinite(uint32_t word, uint32_t probe) {
  uint32_t d;
  if constexpr (std::is_same_v<Element, Half>) {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(word), "r"(0), "r"(probe));
  } else {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(word), "r"(0), "r"(probe));
  }
  return d;
}

template <int kRegisters>
__device__ __forceinline__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace attnd::kernels::cuda::ptx

#endif  // ATTND_KERNELS_CUDA_SM90A_PTX_CUH_
