// From dot products to scores and LSE, a lane a row. Included by the kernel's translation units
// alone.
#ifndef ATTND_KERNELS_CPU_FLASH_SCORES_H_
#define ATTND_KERNELS_CPU_FLASH_SCORES_H_

#include "kernels/cpu/flash_kernel.h"
#include "kernels/cpu/vector.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu {
namespace {

constexpr float kInfinity = __builtin_inff();

// Whether scores are more than dot products times scale, or scale too small or large for the
// exponential's factor.
ATTND_CPU_INLINE bool AdjustsScores(const FlashTile& tile) {
  return tile.softcap > 0 || tile.alibi_slope != 0 || tile.scale < 0x1p-64f || tile.scale > 0x1p64f;
}

// What a stored score is still to be multiplied by.
ATTND_CPU_INLINE float ScoreUnit(const FlashTile& tile) {
  return AdjustsScores(tile) ? 1.0f : tile.scale;
}

// scale, softcap, ALiBi: a dot product becomes a score. `position` is the row's own in key
// coordinates, counted from the tile's first key.
ATTND_CPU_INLINE F32 Score(const FlashTile& tile, F32 dot, F32 position, int64_t key) {
  F32 x = dot * tile.scale;
  if (tile.softcap > 0) x = Tanh(x / tile.softcap) * tile.softcap;
  if (tile.alibi_slope != 0) {
    const F32 distance = Abs(position - static_cast<float>(key));
    x = Fma(distance, Broadcast(-tile.alibi_slope), x);
  }
  return x;
}

// Of kLanes rows from `row` of the sequence on, in key coordinates from the tile's first key k0 on.
ATTND_CPU_INLINE F32 Positions(const FlashTile& tile, int64_t row, int64_t k0) {
  F32 position;
  for (int lane = 0; lane < kLanes; ++lane) {
    position[lane] = static_cast<float>(row + lane + tile.kv_len - tile.q_len - k0);
  }
  return position;
}

// Of a row whose largest stored score is `max`: -inf where nothing was left to sum.
ATTND_CPU_INLINE float Lse(const FlashTile& tile, float max, float sum) {
  const double unit = ScoreUnit(tile);
  return sum == 0.0f ? -kInfinity : static_cast<float>(max * unit + __builtin_log(sum));
}

}  // namespace
}  // namespace attnd::kernels::cpu
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_FLASH_SCORES_H_
