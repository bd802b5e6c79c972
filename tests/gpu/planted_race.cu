// planted_race KIND: a kernel with a race of that kind, for compute-sanitizer's racecheck to find;
// with "none" and "ring", the same kernels without one. It shows that racecheck sees what the
// attention kernels could do wrong: a tile in shared memory read before all of its writers are
// through, or before an asynchronous copy into it has landed; an item of a ring written anew while
// it is being read.
#include <cuda_pipeline_primitives.h>

#include <cstdio>
#include <cstring>

namespace {

enum class Race { kNone, kNoBarrier, kNoBarrierAfterCopy, kRing, kRingNoWait };

constexpr int kThreads = 256;

// Each thread brings one element of the tile and takes that of a thread in another warp.
template <Race race>
__global__ void Reverse(const float4* from, float4* to) {
  __shared__ float4 tile[kThreads];
  const int i = threadIdx.x;
  if (race == Race::kNoBarrierAfterCopy) {
    __pipeline_memcpy_async(&tile[i], &from[i], sizeof(float4));
    __pipeline_commit();
    __pipeline_wait_prior(0);  // for the thread's own copies only
  } else {
    tile[i] = from[i];
  }
  if (race == Race::kNone) __syncthreads();
  to[i] = tile[kThreads - 1 - i];
}

// Items go from one warp to another through one place of shared memory, in the order that mbarriers
// give, two for each item; every lane arrives, as in the Hopper kernels' build for tools. With
// kRingNoWait the writer does not wait for the reader.
constexpr int kItems = 16;

__device__ void Arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// For the barrier's first round.
__device__ void Wait(unsigned barrier) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra WAIT;\n"
      "}" ::"r"(barrier)
      : "memory");
}
template <Race race>
__global__ void HandOn(const float4* from, float4* to) {
  __shared__ float4 item[32];
  __shared__ unsigned long long full[kItems];
  __shared__ unsigned long long empty[kItems];
  const auto address = [](const unsigned long long* barrier) {
    return static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  };
  const int lane = threadIdx.x % 32;
  if (threadIdx.x < 2 * kItems) {
    const unsigned long long* const mine =
        threadIdx.x < kItems ? &full[threadIdx.x] : &empty[threadIdx.x - kItems];
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 32;" ::"r"(address(mine)) : "memory");
  }
  __syncthreads();
  for (int i = 0; i < kItems; ++i) {
    if (threadIdx.x < 32) {
      if (race == Race::kRing && i > 0) Wait(address(&empty[i - 1]));
      item[lane] = from[(i + lane) % kThreads];
      Arrive(address(&full[i]));
    } else {
      Wait(address(&full[i]));
      to[(i + lane) % kThreads] = item[31 - lane];
      Arrive(address(&empty[i]));
    }
  }
}

int Run(Race race) {
  float4* memory = nullptr;
  if (cudaMalloc(&memory, 2 * kThreads * sizeof(float4)) != cudaSuccess) return 2;
  if (cudaMemset(memory, 0, kThreads * sizeof(float4)) != cudaSuccess) return 2;
  float4* const to = memory + kThreads;
  switch (race) {
    case Race::kNone:
      Reverse<Race::kNone><<<1, kThreads>>>(memory, to);
      break;
    case Race::kNoBarrier:
      Reverse<Race::kNoBarrier><<<1, kThreads>>>(memory, to);
      break;
    case Race::kNoBarrierAfterCopy:
      Reverse<Race::kNoBarrierAfterCopy><<<1, kThreads>>>(memory, to);
      break;
    case Race::kRing:
      HandOn<Race::kRing><<<1, 64>>>(memory, to);
      break;
    case Race::kRingNoWait:
      HandOn<Race::kRingNoWait><<<1, 64>>>(memory, to);
      break;
  }
  const cudaError_t error = cudaDeviceSynchronize();
  if (error != cudaSuccess) std::fprintf(stderr, "planted_race: %s\n", cudaGetErrorString(error));
  cudaFree(memory);
  return error == cudaSuccess ? 0 : 2;
}

}  // namespace

int main(int argc, char** argv) {
  const char* const kind = argc == 2 ? argv[1] : "";
  if (std::strcmp(kind, "none") == 0) return Run(Race::kNone);
  if (std::strcmp(kind, "store") == 0) return Run(Race::kNoBarrier);
  if (std::strcmp(kind, "copy") == 0) return Run(Race::kNoBarrierAfterCopy);
  if (std::strcmp(kind, "ring") == 0) return Run(Race::kRing);
  if (std::strcmp(kind, "ring_no_wait") == 0) return Run(Race::kRingNoWait);
  std::fprintf(stderr, "usage: planted_race none|store|copy|ring|ring_no_wait\n");
  return 2;
}
