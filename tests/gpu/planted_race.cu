// planted_race KIND: a kernel with a race of that kind, for compute-sanitizer's racecheck to find;
// with "none", the same kernel without one. It shows that racecheck sees what the attention kernels
// could do wrong: a tile in shared memory read before all of its writers are through, or before an
// asynchronous copy into it has landed.
#include <cuda_pipeline_primitives.h>

#include <cstdio>
#include <cstring>

namespace {

enum class Race { kNone, kNoBarrier, kNoBarrierAfterCopy };

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
  std::fprintf(stderr, "usage: planted_race none|store|copy\n");
  return 2;
}
