// Columns of 16 sums for two row halves, by tile products, one column after another without a gap.
// Included by the AMX kernel's unit alone.
//
// What keeps the tile unit at work, each measured:
//  - Consecutive products add to one register, whose next sums need not wait for it to be stored.
//  - No tile is loaded past a store that still waits for its sums, so a store comes two products
//    after the last product of its sums.
//  - A column's factors on the right stay in registers for both row halves. They pass through once,
//    so they are loaded without a place in the L1, each as soon as the column before has done with
//    its register.
#ifndef ATTND_KERNELS_CPU_AMX_COLUMNS_H_
#define ATTND_KERNELS_CPU_AMX_COLUMNS_H_

#include "kernels/cpu/amx/config.h"
#include "kernels/cpu/amx/tile.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu::amx {
namespace {

struct Column {
  const uint16_t* left;   // [32 of the depth][row half] tiles
  const uint16_t* right;  // [32 of the depth] tiles
  float* sums;            // of the first row half
  int64_t half_elems;     // from there to the second's
};

// Registers: 0 and 1 sums, 2 and 3 factors on the left, 4 to 7 on the right.
class ColumnProducts {
 public:
  // `spare`: a tile that nobody reads.
  explicit ColumnProducts(float* spare) : spare_(spare), store_(spare) {}

  // Before the first column, and after the last.
  template <int kDepth, bool kAdds>
  ATTND_CPU_INLINE void Begin(const Column& first) {
    store_ = spare_;
    if constexpr (kAdds) {
      LoadTile<0>(first.sums, 64);
    } else {
      ZeroTile<0>();
    }
    ZeroTile<1>();
    LoadRight<0, kDepth>(first.right);
    LoadTile<2>(first.left, 64);
  }
  ATTND_CPU_INLINE void End() { StoreTile<1>(store_, 64); }

  // Sums are products over kDepth times 32, with kAdds added to what was there. The next column is
  // told, whose first registers are loaded; the last column may be its own next. `meanwhile`(i), i
  // from 0 to 2 kDepth - 1, is called after each product. A column's second half is stored during
  // the next column.
  template <int kDepth, bool kAdds, int kNextDepth, bool kNextAdds, typename Meanwhile>
  ATTND_CPU_INLINE void Multiply(const Column& column, const Column& next, Meanwhile meanwhile) {
    Half<0, kDepth, kAdds, 0>(column.left, column.left + kTileElems,
                              column.sums + column.half_elems, nullptr, meanwhile);
    store_ = column.sums;
    Half<1, kDepth, kNextAdds, kNextDepth>(column.left + kTileElems, next.left, next.sums,
                                           next.right, meanwhile);
    store_ = column.sums + column.half_elems;
  }

 private:
  // `next_sums` are those of the other register.
  template <int half, int kDepth, bool kNextAdds, int kNextRight, typename Meanwhile>
  ATTND_CPU_INLINE void Half(const uint16_t* left, const uint16_t* next_left,
                             const float* next_sums, const uint16_t* next_right,
                             Meanwhile& meanwhile) {
    static_assert(kDepth >= 2 && kDepth <= 4);
    Part<half, 0, kDepth, kNextRight>(left, next_left, next_right, meanwhile);
    Part<half, 1, kDepth, kNextRight>(left, next_left, next_right, meanwhile);
    StoreTile<1 - half>(store_, 64);
    if constexpr (kNextAdds) {
      LoadTile<1 - half>(next_sums, 64);
    } else {
      ZeroTile<1 - half>();
    }
    if constexpr (kDepth > 2) {
      Part<half, 2, kDepth, kNextRight>(left, next_left, next_right, meanwhile);
    }
    if constexpr (kDepth > 3) {
      Part<half, 3, kDepth, kNextRight>(left, next_left, next_right, meanwhile);
    }
  }

  // One product, and the loads that follow it.
  template <int half, int part, int kDepth, int kNextRight, typename Meanwhile>
  ATTND_CPU_INLINE void Part(const uint16_t* left, const uint16_t* next_left,
                             const uint16_t* next_right, Meanwhile& meanwhile) {
    MultiplyTiles<half, 2 + part % 2, 4 + part>();
    meanwhile(half * kDepth + part);
    constexpr bool kLast = part + 1 == kDepth;
    LoadRight<part, kLast ? kNextRight : part + 1 < kNextRight ? part + 1 : kNextRight>(next_right);
    if constexpr (kLast) {
      LoadTile<2>(next_left, 64);
    } else {
      LoadTile<2 + (part + 1) % 2>(left + (part + 1) * 2 * kTileElems, 64);
    }
  }

  // Tiles from `kFrom` up to `kEnd`, if any.
  template <int kFrom, int kEnd>
  ATTND_CPU_INLINE void LoadRight(const uint16_t* right) {
    if constexpr (kFrom < kEnd) {
      LoadTileOnce<4 + kFrom>(right + kFrom * kTileElems, 64);
      LoadRight<kFrom + 1, kEnd>(right);
    }
  }

  float* const spare_;
  float* store_;  // where the register that is not multiplied into belongs
};

}  // namespace
}  // namespace attnd::kernels::cpu::amx
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_AMX_COLUMNS_H_
