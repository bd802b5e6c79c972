// Stands for kernels/cuda/sm90a/wgmma.cuh where kernel code runs on host threads: products of ones,
// and now and then a NaN in the output, for which the item is dealt once more.
#ifndef ATTND_KERNELS_CUDA_SM90A_WGMMA_CUH_
#define ATTND_KERNELS_CUDA_SM90A_WGMMA_CUH_

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <random>

namespace attnd::kernels::cuda::sm90a {

inline std::atomic<int> nan_per_mille{0};
// Products with V that were issued, by all warps.
inline std::atomic<int64_t> output_products{0};

inline uint32_t OperandDescriptor(uint32_t, int) { return 0; }
inline void WgmmaFence() {}
inline void WgmmaCommit() {}
template <int kPending>
void WgmmaWait() {}
template <int kCount>
void PinRegisters(float (&)[kCount]) {}

template <int kColumns>
struct Wgmma {
  template <class Element>
  static void AddShared(float (&d)[kColumns / 2], uint32_t, uint32_t, bool) {
    std::fill(std::begin(d), std::end(d), 0.0f);
  }
  template <class Element>
  static void AddRegisters(float (&d)[kColumns / 2], const uint32_t*, uint32_t, bool) {
    thread_local std::minstd_rand random{std::random_device{}()};
    std::fill(std::begin(d), std::end(d), 1.0f);
    if (static_cast<int>(random() % 1000) < nan_per_mille) d[0] = NAN;
    ++output_products;
  }
};

}  // namespace attnd::kernels::cuda::sm90a

#endif  // ATTND_KERNELS_CUDA_SM90A_WGMMA_CUH_
