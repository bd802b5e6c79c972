// Stands for kernels/cuda/sm90a/ptx.cuh where kernel code runs on host threads, one a warp:
// barriers that count, and copies that are there at once. What waits gives up, with Stopped, when
// `stop` is set.
#ifndef ATTND_KERNELS_CUDA_SM90A_PTX_CUH_
#define ATTND_KERNELS_CUDA_SM90A_PTX_CUH_

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>

#include "kernels/cuda/ptx.cuh"

namespace attnd::kernels::cuda::ptx {

struct Stopped {};

// mbarriers by address, and the named barriers, of one block.
struct Barriers {
  struct Phased {
    int count = 0;
    int missing = 0;
    uint32_t phase = 0;
  };
  struct Named {
    int arrived = 0;
    uint64_t round = 0;
    bool any = false;
    bool last_any = false;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::map<uint32_t, Phased> phased;
  std::map<int, Named> named;
  std::atomic<bool> stop{false};
  std::atomic<int64_t> steps{0};  // grows while something goes on

  void WaitUntil(std::unique_lock<std::mutex>& lock, const auto& done) {
    while (!done()) {
      if (stop) throw Stopped{};
      changed.wait_for(lock, std::chrono::milliseconds(20));
    }
  }
};
inline Barriers* barriers = nullptr;

// Shakes the order of things.
inline void Jitter() {
  thread_local std::minstd_rand random{std::random_device{}()};
  if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 20));
}

inline void BarrierInit(uint32_t barrier, int arrivals) {
  barriers->phased[barrier] = {arrivals, arrivals, 0};
}
inline void BarrierInitFence() {}
inline void BarrierArrive(uint32_t barrier) {
  Jitter();
  std::lock_guard<std::mutex> lock(barriers->mutex);
  Barriers::Phased& b = barriers->phased.at(barrier);
  if (--b.missing == 0) {
    b.missing = b.count;
    ++b.phase;
  }
  ++barriers->steps;
  barriers->changed.notify_all();
}
inline void BarrierArriveExpect(uint32_t barrier, int) { BarrierArrive(barrier); }
inline void BarrierWait(uint32_t barrier, uint32_t parity) {
  Jitter();
  std::unique_lock<std::mutex> lock(barriers->mutex);
  const Barriers::Phased& b = barriers->phased.at(barrier);
  barriers->WaitUntil(lock, [&] { return (b.phase & 1) != parity; });
}

inline bool Meet(int id, int threads, bool value, bool wait) {
  Jitter();
  std::unique_lock<std::mutex> lock(barriers->mutex);
  Barriers::Named& b = barriers->named[id];
  b.any |= value;
  const uint64_t round = b.round;
  ++barriers->steps;
  if (++b.arrived == threads / 32) {
    b.last_any = b.any;
    b.arrived = 0;
    b.any = false;
    ++b.round;
    barriers->changed.notify_all();
  } else if (wait) {
    barriers->WaitUntil(lock, [&] { return b.round != round; });
  }
  return b.last_any;
}
inline void NamedSync(int id, int threads) { Meet(id, threads, false, true); }
inline void NamedArrive(int id, int threads) { Meet(id, threads, false, false); }
inline bool NamedAny(int id, int threads, bool value) { return Meet(id, threads, value, true); }

template <class Element>
uint32_t ProbeFinite(uint32_t word, uint32_t probe) {
  return word | probe;
}
inline void StoreGlobal(void*, uint2) {}
inline void FenceAsyncProxy() {}
inline void FenceTensorMap(const CUtensorMap*) {}
inline void TensorLoad(uint32_t, const CUtensorMap*, uint32_t, int, int, int, int) {}

}  // namespace attnd::kernels::cuda::ptx

#endif  // ATTND_KERNELS_CUDA_SM90A_PTX_CUH_
