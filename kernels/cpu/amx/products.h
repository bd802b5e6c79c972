// Products of blocks of two row halves, by tiles. Included by the AMX kernel's unit alone.
#ifndef ATTND_KERNELS_CPU_AMX_PRODUCTS_H_
#define ATTND_KERNELS_CPU_AMX_PRODUCTS_H_

#include "kernels/cpu/amx/config.h"
#include "kernels/cpu/amx/tile.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu::amx {
namespace {

// Two sets of sums, of 32 rows and 16 columns each, take turns: a tile that was just multiplied
// into can be stored some 50 cycles later, and its register serves no other product before that.
// Meanwhile the other set is multiplied into. With one row half, the second half's registers rest.
template <int set, int half>
inline constexpr int kSum = 2 * set + half;
template <int half>
inline constexpr int kLeft = 4 + half;
template <int set>
inline constexpr int kRight = 6 + set;

template <int set, int kHalves>
ATTND_CPU_INLINE void ZeroSums() {
  ZeroTile<kSum<set, 0>>();
  if constexpr (kHalves == 2) ZeroTile<kSum<set, 1>>();
}

template <int set, int kHalves>
ATTND_CPU_INLINE void LoadSums(const float* from, int64_t half_elems) {
  LoadTile<kSum<set, 0>>(from, 64);
  if constexpr (kHalves == 2) LoadTile<kSum<set, 1>>(from + half_elems, 64);
}

template <int set, int kHalves>
ATTND_CPU_INLINE void StoreSums(float* to, int64_t half_elems) {
  StoreTile<kSum<set, 0>>(to, 64);
  if constexpr (kHalves == 2) StoreTile<kSum<set, 1>>(to + half_elems, 64);
}

// O's columns, by groups of 16. bf16 has one more, for V has one more, of ones: so it holds the
// sums of the weights, rounded as they are multiplied. The rounding of a weight far above the
// others cancels in the quotient then.
template <int kSteps, int kParts>
inline constexpr int kOutputColumns = 2 * kSteps + (kParts == 1 ? 1 : 0);
struct alignas(64) Ones {
  uint16_t bf16[kTileElems];
  constexpr Ones() : bf16() {
    for (uint16_t& one : bf16) one = 0x3f80;
  }
};
constexpr Ones kOnes;

template <int set, int half>
ATTND_CPU_INLINE void LoadAndMultiply(const uint16_t* left) {
  LoadTile<kLeft<half>>(left + half * kTileElems, 64);
  MultiplyTiles<kSum<set, half>, kLeft<half>, kRight<set>>();
}

// Adds the product of left, [part][row half] tiles, and right, [part] tiles; of their parts all,
// but that of the two low ones only with kLow: scores are exact to fp32, P.V to fp16.
// `meanwhile`(0) and (1) come between.
template <int set, int kHalves, int kParts, bool kLow, typename Meanwhile>
ATTND_CPU_INLINE void Multiply(const uint16_t* left, const uint16_t* right, Meanwhile meanwhile) {
  const auto both_halves = [](const uint16_t* from) __attribute__((always_inline)) {
    LoadAndMultiply<set, 0>(from);
    if constexpr (kHalves == 2) LoadAndMultiply<set, 1>(from);
  };
  LoadTile<kRight<set>>(right, 64);
  if constexpr (kParts == 1) {
    LoadAndMultiply<set, 0>(left);
    meanwhile(0);
    if constexpr (kHalves == 2) LoadAndMultiply<set, 1>(left);
  } else {
    both_halves(left);
    meanwhile(0);
    both_halves(left + 2 * kTileElems);
    LoadTile<kRight<set>>(right + kTileElems, 64);
    both_halves(left);
    if constexpr (kLow) both_halves(left + 2 * kTileElems);
  }
  meanwhile(1);
}

}  // namespace
}  // namespace attnd::kernels::cpu::amx
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_AMX_PRODUCTS_H_
