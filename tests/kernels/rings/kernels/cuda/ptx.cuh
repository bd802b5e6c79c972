// Stands for kernels/cuda/ptx.cuh where kernel code runs on host threads.
#ifndef ATTND_KERNELS_CUDA_PTX_CUH_
#define ATTND_KERNELS_CUDA_PTX_CUH_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/element.cuh"

namespace attnd::kernels::cuda::ptx {

// The block's shared memory: addresses count from here.
inline unsigned char* shared_base = nullptr;

inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) - shared_base);
}
inline float Exp2(float x) { return std::exp2(x); }
inline float Reciprocal(float x) { return 1 / x; }
// 0 if both are finite.
template <class Element>
uint32_t Pack2(float lo, float hi) {
  return std::isfinite(lo) && std::isfinite(hi) ? 0 : 1;
}
// Nothing here reads what an element holds.
template <class Element>
float ToFloat(Element) {
  return 0;
}
template <class Element>
Element FromFloat(float) {
  return {};
}
inline float MaxNaN(float a, float b) { return a > b || std::isnan(a) ? a : b; }

}  // namespace attnd::kernels::cuda::ptx

#endif  // ATTND_KERNELS_CUDA_PTX_CUH_
