// What device code takes for granted, for one thread that stands for a warp: its first lane.
#ifndef ATTND_TESTS_KERNELS_RINGS_DEVICE_H_
#define ATTND_TESTS_KERNELS_RINGS_DEVICE_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

struct HostIndex {
  unsigned x;
};
inline thread_local HostIndex host_thread{0};
inline HostIndex host_grid{1};
#define threadIdx host_thread
#define gridDim host_grid
#undef __device__
#define __device__
#undef __forceinline__
#define __forceinline__ inline

using std::isfinite;
using std::max;
using std::min;

template <class T>
T __shfl_sync(unsigned, T value, int) {
  return value;
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int) {
  return value;
}
inline bool __any_sync(unsigned, bool value) { return value; }
inline void __syncwarp() {}
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __log2f(float a) { return std::log2(a); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline unsigned long long atomicAdd(unsigned long long* target, unsigned long long value) {
  return __atomic_fetch_add(target, value, __ATOMIC_SEQ_CST);
}
inline int atomicExch(int* target, int value) {
  return __atomic_exchange_n(target, value, __ATOMIC_SEQ_CST);
}
inline int atomicCAS(int* target, int expected, int value) {
  __atomic_compare_exchange_n(target, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return expected;
}

#endif  // ATTND_TESTS_KERNELS_RINGS_DEVICE_H_
