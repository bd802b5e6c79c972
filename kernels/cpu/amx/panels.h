// Panels of sums, 16 or 32 columns for two row halves, by tile products, one panel after another
// without a gap. Included by the AMX kernel's unit alone.
//
// What keeps the tile unit at work, each measured:
//  - Tiles are loaded through the ports that the weights need too, so each serves two products.
//  - Products may add to a register whose former sums were not stored yet: they get another one.
//  - No tile is loaded past a store that still waits for its sums. So the first products of a panel
//    have their factors before the stores of the panel before, each of which comes three products
//    after the last one of its sums.
//  - Factors on the right pass through once, so they are loaded without a place in the L1.
#ifndef ATTND_KERNELS_CPU_AMX_PANELS_H_
#define ATTND_KERNELS_CPU_AMX_PANELS_H_

#include "kernels/cpu/amx/config.h"
#include "kernels/cpu/amx/tile.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu::amx {
namespace {

// Where the sums of a panel lie: [column of 16][row half] tiles.
struct PanelSums {
  float* first;
  int64_t half_elems;    // to the second row half's
  int64_t column_elems;  // to the second column's

  ATTND_CPU_INLINE float* Of(int sum) const {
    return first + sum % 2 * half_elems + sum / 2 * column_elems;
  }
};

struct Panel {
  const uint16_t* left;   // [32 of the depth][row half] tiles
  const uint16_t* right;  // [32 of the depth] tiles of the first column, right_elems apart
  int64_t right_elems;
  int64_t right_column_elems;  // to the second column's
  PanelSums sums;
};

// Registers: 0 to 3 sums, 4 and 5 factors on the left, 6 and 7 on the right.
class PanelProducts {
 public:
  // `spare`: a tile that nobody reads.
  explicit PanelProducts(float* spare) : spare_{spare, 0, 0}, pending_(spare_) {}

  // Before the first panel, and after the last, which has kColumns.
  ATTND_CPU_INLINE void Begin() { pending_ = spare_; }
  template <int kColumns>
  ATTND_CPU_INLINE void End() {
    StorePending<0, kColumns>();
    StorePending<1, kColumns>();
    StorePending<3, kColumns>();
    StorePending<2, kColumns>();
    pending_ = spare_;
  }

  // The first factors of a panel.
  template <int kColumns>
  ATTND_CPU_INLINE void Load(const Panel& panel) {
    LoadTile<4>(panel.left, 64);
    LoadTileOnce<6>(panel.right, 64);
    LoadTile<5>(panel.left + kTileElems, 64);
    if constexpr (kColumns == 2) LoadTileOnce<7>(panel.right + panel.right_column_elems, 64);
  }

  // Sums of kColumns times 16 columns are products over kDepth times 32, with kAdds added to what
  // was there. Their first factors are loaded; those of `next`, of kNextColumns unless that is 0,
  // are loaded afterwards. `meanwhile`(i), i from 0 to 2 kColumns kDepth - 1, is called after each
  // product. They are stored during the next panel, as those of the panel before, of kBefore
  // columns, are now.
  template <int kBefore, int kColumns, int kDepth, bool kAdds, int kNextColumns, typename Meanwhile>
  ATTND_CPU_INLINE void Multiply(const Panel& panel, const Panel& next, Meanwhile meanwhile) {
    static_assert(kDepth >= 2 && kDepth <= 4);
    Start<0, kBefore, kAdds>(panel);
    Product<0, 0, kColumns, kDepth, kNextColumns>(panel, next, meanwhile);
    Start<1, kBefore, kAdds>(panel);
    Product<1, 0, kColumns, kDepth, kNextColumns>(panel, next, meanwhile);
    if constexpr (kColumns == 2) {
      Start<3, kBefore, kAdds>(panel);
      Product<3, 0, kColumns, kDepth, kNextColumns>(panel, next, meanwhile);
      Start<2, kBefore, kAdds>(panel);
      Product<2, 0, kColumns, kDepth, kNextColumns>(panel, next, meanwhile);
    } else {
      StorePending<3, kBefore>();
      StorePending<2, kBefore>();
    }
    pending_ = panel.sums;
    Depth<1, kColumns, kDepth, kNextColumns>(panel, next, meanwhile);
    if constexpr (kDepth > 2) Depth<2, kColumns, kDepth, kNextColumns>(panel, next, meanwhile);
    if constexpr (kDepth > 3) Depth<3, kColumns, kDepth, kNextColumns>(panel, next, meanwhile);
  }

 private:
  template <int sum, int kColumns>
  ATTND_CPU_INLINE void StorePending() {
    if constexpr (sum < 2 * kColumns) StoreTile<sum>(pending_.Of(sum), 64);
  }

  // A sum's register changes its panel.
  template <int sum, int kBefore, bool kAdds>
  ATTND_CPU_INLINE void Start(const Panel& panel) {
    StorePending<sum, kBefore>();
    if constexpr (kAdds) {
      LoadTile<sum>(panel.sums.Of(sum), 64);
    } else {
      ZeroTile<sum>();
    }
  }

  template <int depth, int kColumns, int kDepth, int kNextColumns, typename Meanwhile>
  ATTND_CPU_INLINE void Depth(const Panel& panel, const Panel& next, Meanwhile& meanwhile) {
    Product<0, depth, kColumns, kDepth, kNextColumns>(panel, next, meanwhile);
    Product<1, depth, kColumns, kDepth, kNextColumns>(panel, next, meanwhile);
    if constexpr (kColumns == 2) {
      Product<3, depth, kColumns, kDepth, kNextColumns>(panel, next, meanwhile);
      Product<2, depth, kColumns, kDepth, kNextColumns>(panel, next, meanwhile);
    }
  }

  // One product, in the order 0, 1, 3, 2, and then the factors that take the place of those which
  // no other product of this depth needs.
  template <int sum, int depth, int kColumns, int kDepth, int kNextColumns, typename Meanwhile>
  ATTND_CPU_INLINE void Product(const Panel& panel, const Panel& next, Meanwhile& meanwhile) {
    MultiplyTiles<sum, 4 + sum % 2, 6 + sum / 2>();
    meanwhile(depth * 2 * kColumns + (sum < 2 ? sum : 5 - sum));
    constexpr bool kLast = depth + 1 == kDepth;
    constexpr int kLoads = kLast ? kNextColumns : kColumns;
    if constexpr (kLoads > 0) {
      const uint16_t* left = kLast ? next.left : panel.left + (depth + 1) * 2 * kTileElems;
      const uint16_t* right = kLast ? next.right : panel.right + (depth + 1) * panel.right_elems;
      if constexpr (sum == 1) LoadTileOnce<6>(right, 64);
      if constexpr (sum == (kColumns == 2 ? 2 : 1)) LoadTile<4>(left, 64);
      if constexpr (sum == (kColumns == 2 ? 3 : 1)) LoadTile<5>(left + kTileElems, 64);
      if constexpr (sum == (kColumns == 2 ? 2 : 1) && kLoads == 2) {
        LoadTileOnce<7>(right + (kLast ? next : panel).right_column_elems, 64);
      }
    }
  }

  const PanelSums spare_;
  PanelSums pending_;  // where the registers' sums belong
};

}  // namespace
}  // namespace attnd::kernels::cpu::amx
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_AMX_PANELS_H_
