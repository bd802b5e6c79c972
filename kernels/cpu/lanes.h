// Sums and maxima over the lanes of vectors. Included by the kernel's translation units alone.
#ifndef ATTND_KERNELS_CPU_LANES_H_
#define ATTND_KERNELS_CPU_LANES_H_

#include <utility>

#include "kernels/cpu/vector.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu {
namespace {

// Lanes with the bit `step` of their number: what b has there and `step` below; the others: what a
// has there and `step` above.
template <int step, int... lane>
ATTND_CPU_INLINE F32 AddHalves(F32 a, F32 b, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(a, b, ((lane & step) != 0 ? kLanes + lane : lane)...) +
         __builtin_shufflevector(a, b,
                                 ((lane & step) != 0 ? kLanes + lane - step : lane + step)...);
}

// Lane i: the sum of v[i]'s lanes.
template <int step = 1>
ATTND_CPU_INLINE F32 SumOfEach(F32* v) {
  constexpr int kCount = kLanes / (2 * step);
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) {
    v[i] = AddHalves<step>(v[2 * i], v[2 * i + 1], std::make_integer_sequence<int, kLanes>());
  }
  if constexpr (kCount > 1) {
    return SumOfEach<2 * step>(v);
  } else {
    return v[0];
  }
}

// Adds up `v`'s lanes, or finds their maximum, by halves: the result stands in every lane.
struct Adding {
  ATTND_CPU_INLINE static F32 Of(F32 a, F32 b) { return a + b; }
};
struct Greatest {
  ATTND_CPU_INLINE static F32 Of(F32 a, F32 b) { return Max(a, b); }
};
template <typename Operation, int step = kLanes / 2, int... lane>
ATTND_CPU_INLINE F32 OverLanes(F32 v, std::integer_sequence<int, lane...> lanes) {
  v = Operation::Of(v, __builtin_shufflevector(v, v, (lane ^ step)...));
  if constexpr (step > 1) {
    return OverLanes<Operation, step / 2>(v, lanes);
  } else {
    return v;
  }
}
template <typename Operation>
ATTND_CPU_INLINE F32 OverLanes(F32 v) {
  return OverLanes<Operation>(v, std::make_integer_sequence<int, kLanes>());
}

}  // namespace
}  // namespace attnd::kernels::cpu
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_LANES_H_
