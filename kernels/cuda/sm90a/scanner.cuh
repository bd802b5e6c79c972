// NaN and infinity in V beside a mask. A hidden key has probability 0, and 0 * NaN is NaN. An item
// whose output is not finite, and where a mask hides something, is worked on once more, carefully:
// two warps look through the V tiles that some rows see only in part, between the copy engine and
// the consumers. What is not finite is taken out, and given at the end to the rows that do see it
// (epilogue.cuh). The other rows then have, to the bit, what they have without it.
#ifndef ATTND_KERNELS_CUDA_SM90A_SCANNER_CUH_
#define ATTND_KERNELS_CUDA_SM90A_SCANNER_CUH_

#include <cstdint>

#include "kernels/cuda/score.cuh"
#include "kernels/cuda/sm90a/shared.cuh"

namespace attnd::kernels::cuda::sm90a {

inline constexpr int kScannerThreads = 64;
inline constexpr int kScannerBarrier = 4;

template <class T>
struct Scanner {
  using Element = typename T::Element;
  Shared<T>& shared;
  int thread;  // 0 to 63
  RingPlace<T::kStages> v = {};
  uint32_t landed_parity = 0;  // a bit a stage

  // True if something was taken out.
  __device__ __forceinline__ bool Scan(unsigned char* tile) {
    auto* words = reinterpret_cast<uint4*>(tile);
    constexpr int kWords = T::kKvBytes / 16;
    uint32_t found = 0;
#pragma unroll 4
    for (int i = thread; i < kWords; i += kScannerThreads) {
      const uint4 w = words[i];
      found |= NotFinite<Element>(w.x) | NotFinite<Element>(w.y) | NotFinite<Element>(w.z) |
               NotFinite<Element>(w.w);
    }
    const bool any = ptx::NamedAny(kScannerBarrier, kScannerThreads, found != 0);
    if (any) {
#pragma unroll 1
      for (int i = thread; i < kWords; i += kScannerThreads) {
        uint4 w = words[i];
        w.x = WithoutNotFinite<Element>(w.x);
        w.y = WithoutNotFinite<Element>(w.y);
        w.z = WithoutNotFinite<Element>(w.z);
        w.w = WithoutNotFinite<Element>(w.w);
        words[i] = w;
      }
      ptx::FenceAsyncProxy();
      ptx::NamedSync(kScannerBarrier, kScannerThreads);
    }
    return any;
  }

  __device__ __forceinline__ void Run() {
    RingPlace<kItemSlots> slot;
    while (true) {
      slot.WaitFull(shared.item_full);
      const Work& work = shared.items[slot.index()];
      if (work.none_left) return;
      const KeyTiles tiles = work.tiles;
      for (int tile = tiles.last; tile >= tiles.first; --tile) {
        if (work.careful && NeedsMask<T>(work, tile)) {
          ptx::BarrierWait(ptx::SharedAddress(shared.v_landed + v.index()),
                           (landed_parity >> v.index()) & 1);
          landed_parity ^= 1u << v.index();
          const bool any = Scan(shared.v[v.index()]);
          if (thread == 0) {
            if (any) shared.give_back[slot.index()] = kGiveBack;
            ptx::BarrierArrive(ptx::SharedAddress(shared.v_full + v.index()));
          }
        }
        v.Advance();
      }
      WarpArrive(shared.item_empty, slot.index());
      slot.Advance();
    }
  }
};

}  // namespace attnd::kernels::cuda::sm90a

#endif  // ATTND_KERNELS_CUDA_SM90A_SCANNER_CUH_
