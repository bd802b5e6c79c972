// NaN and infinity in V beside a mask, for halves (fp32: split.cuh). A hidden key has probability
// 0, and 0 * NaN is NaN: in a tile that some rows see only in part, what is not finite in V is
// taken out before the product, and given at the end to the rows that do see it. The other rows
// then have, to the bit, what they have without it. Costs a look at V in the tiles that need a
// mask; the rest of it runs only where something was found, and is bounded by those tiles' keys
// times the tile's rows.
#ifndef ATTND_KERNELS_CUDA_GENERIC_POISON_CUH_
#define ATTND_KERNELS_CUDA_GENERIC_POISON_CUH_

#include <cstdint>

#include "kernels/cuda/generic/tile.cuh"
#include "kernels/cuda/score.cuh"

namespace attnd::kernels::cuda::generic {

// Called by the whole block when V's tile has arrived, before it is read; holds barriers. Returns,
// to every thread alike, whether something was taken out.
template <class Element, class VLayout, int kKeys, int kThreads>
__device__ __forceinline__ bool TakeOutPoison(unsigned char* v_tile) {
  using D = Deal<VLayout, kKeys, kThreads>;
  const D deal;
  uint32_t found = 0;
  if (!deal.idle()) {
#pragma unroll 4
    for (int row = deal.row; row < kKeys; row += D::kRowsPerPass) {
      const uint4 w = *reinterpret_cast<const uint4*>(v_tile + VLayout::Offset(row, deal.chunk));
      found |= NotFinite<Element>(w.x) | NotFinite<Element>(w.y) | NotFinite<Element>(w.z) |
               NotFinite<Element>(w.w);
    }
  }
  if (!__syncthreads_or(found != 0)) return false;
  if (!deal.idle()) {
#pragma unroll 1
    for (int row = deal.row; row < kKeys; row += D::kRowsPerPass) {
      auto* w = reinterpret_cast<uint32_t*>(v_tile + VLayout::Offset(row, deal.chunk));
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = WithoutNotFinite<Element>(w[i]);
    }
  }
  __syncthreads();
  return true;
}

}  // namespace attnd::kernels::cuda::generic

#endif  // ATTND_KERNELS_CUDA_GENERIC_POISON_CUH_
