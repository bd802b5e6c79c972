// Tile registers: their configuration, loads, stores and products. Included by the AMX kernel's
// unit alone, with internal linkage: see flash_kernel.h.
//
// Written as assembly because the compilers' intrinsics of this age do not say what memory they
// read and write, and stores could be moved across them.
#ifndef ATTND_KERNELS_CPU_AMX_TILE_H_
#define ATTND_KERNELS_CPU_AMX_TILE_H_

#include <cstdint>

#include "kernels/cpu/vector.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu::amx {
namespace {

// As LDTILECFG reads it. All eight registers: 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kTileConfig;
static_assert(sizeof(TileConfig) == 64);

// Between these two, and nowhere else, tile registers may be used. Released, they cost a context
// switch nothing.
ATTND_CPU_INLINE void ConfigureTiles() { asm volatile("ldtilecfg %0" : : "m"(kTileConfig)); }
ATTND_CPU_INLINE void ReleaseTiles() { asm volatile("tilerelease"); }

template <int tile>
ATTND_CPU_INLINE void ZeroTile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(tile));
}

template <int tile>
ATTND_CPU_INLINE void LoadTile(const void* from, int64_t row_stride_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
               :
               : "r"(from), "r"(row_stride_bytes), "i"(tile)
               : "memory");
}

// Likewise what is not needed again soon: it takes no place in the L1.
template <int tile>
ATTND_CPU_INLINE void LoadTileOnce(const void* from, int64_t row_stride_bytes) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2"
               :
               : "r"(from), "r"(row_stride_bytes), "i"(tile)
               : "memory");
}

template <int tile>
ATTND_CPU_INLINE void StoreTile(void* to, int64_t row_stride_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
               :
               : "r"(to), "r"(row_stride_bytes), "i"(tile)
               : "memory");
}

// sums[row][column] += a[row][2i] * b[i][2 column] + a[row][2i + 1] * b[i][2 column + 1] over i in
// [0, 16): bf16 factors, fp32 sums; subnormal numbers count as zero.
template <int sums, int a, int b>
ATTND_CPU_INLINE void MultiplyTiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(a), "i"(b));
}

}  // namespace
}  // namespace attnd::kernels::cpu::amx
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_AMX_TILE_H_
