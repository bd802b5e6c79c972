// What is computed together: blocks of rows, steps of keys. Included by the AMX kernel's unit
// alone.
#ifndef ATTND_KERNELS_CPU_AMX_STEPS_H_
#define ATTND_KERNELS_CPU_AMX_STEPS_H_

#include "kernels/cpu/amx/config.h"
#include "kernels/cpu/flash_kernel.h"
#include "kernels/cpu/vector.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu::amx {
namespace {

ATTND_CPU_INLINE int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
ATTND_CPU_INLINE int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }
ATTND_CPU_INLINE int64_t RoundDown(int64_t value, int64_t to) { return value / to * to; }
ATTND_CPU_INLINE int64_t RoundUp(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

// Rows that are computed together, and the keys of a chunk that they see.
struct Block {
  int64_t row = 0;   // the first, of the task's rows
  int64_t rows = 0;  // 1 .. kBlockRows
  int64_t key = 0;   // a multiple of kStepKeys
  int64_t end = 0;
  int64_t full_begin = 0;  // keys [full_begin, full_end) are seen by every row
  int64_t full_end = 0;
};

// One block on one step of keys.
struct Step {
  Block block;
  int64_t key = 0;
  int64_t groups = 0;  // 1 .. kKeyGroups, of 32 keys: up to the last that the block sees
  bool edge = false;   // some row must not see some of its vectors' keys

  // The block's step from `key` on.
  static Step At(const Block& block, int64_t key) {
    Step step = {block, key, Min(kKeyGroups, (block.end - key + 31) / 32)};
    const int64_t end = key + (step.half() ? kStepKeys / 2 : kStepKeys);
    step.edge = key < block.full_begin || end > block.full_end;
    return step;
  }

  // Half of a step is computed where no more is seen.
  bool half() const { return groups <= kKeyGroups / 2; }
};

// Which steps of each block: all; or the first of blocks that have computed nothing yet, then the
// others up to the last that all rows see whole, then the others. Blocks are independent, so they
// are walked through once for each, and steps of one kind follow each other.
enum class Part { kAll, kFirst, kInner, kLast };

// The steps of a task's blocks on a chunk of keys: block by block, keys ascending.
class Walk {
 public:
  explicit Walk(const GroupTile& tile) : tile_(tile) {}

  // Keys [begin, end) are the chunk's. `fresh`[block]: nothing was computed of it before; not read
  // for kAll.
  void Start(int64_t begin, int64_t end, Part part, const bool* fresh) {
    begin_ = begin;
    end_ = end;
    part_ = part;
    fresh_ = fresh;
  }

  // False if there is none.
  bool First(Step& step) const { return FirstFrom(0, step); }
  bool Next(const Step& before, Step& step) const {
    const int64_t key = before.key + kStepKeys;
    if (key >= before.block.end) return FirstFrom(before.block.row + kBlockRows, step);
    step = Step::At(before.block, key);
    return true;
  }

  // The keys that some of these rows see.
  KeyRange KeysOf(int64_t row, int64_t end) const {
    return tile_.band.KvRange(Position(row), Position(end - 1) + 1, tile_.kv_len);
  }

  // Rows of the step's block, as bits, that see a key of the step for which `has`(key) is true.
  template <typename Has>
  uint32_t RowsThatSee(const Step& step, Has has) const {
    uint32_t rows = 0;
    for (int64_t key = step.key; key < Min(step.key + kStepKeys, step.block.end); ++key) {
      if (!has(key)) continue;
      for (int64_t i = 0; i < step.block.rows; ++i) {
        rows |= uint32_t{tile_.band.Allows(Position(step.block.row + i), key)} << i;
      }
    }
    return rows;
  }

 private:
  int64_t Position(int64_t row) const { return (tile_.row_begin + row) / tile_.group; }

  bool FirstFrom(int64_t row, Step& step) const {
    for (; row < tile_.rows; row += kBlockRows) {
      const int64_t rows = Min(kBlockRows, tile_.rows - row);
      const KeyRange range = KeysOf(row, row + rows);
      const int64_t begin = Max(range.begin, begin_);
      const int64_t end = Min(range.end, end_);
      if (range.empty() || begin >= end) continue;
      const int64_t first = Position(row), last = Position(row + rows - 1);
      Block block = {row,
                     rows,
                     RoundDown(begin, kStepKeys),
                     end,
                     last + tile_.band.lo,
                     Min(tile_.kv_len, first + tile_.band.hi + 1)};
      if (!Cut(block)) continue;
      step = Step::At(block, block.key);
      return true;
    }
    return false;
  }

  // Leaves what belongs to the part; false if that is nothing.
  bool Cut(Block& block) const {
    if (part_ == Part::kAll) return true;
    const bool fresh = fresh_[block.row / kBlockRows];
    const int64_t inner = fresh ? Min(block.key + kStepKeys, block.end) : block.key;
    const int64_t whole =
        block.full_end >= block.end ? block.end : RoundDown(block.full_end, kStepKeys);
    const int64_t last = Max(inner, whole);
    if (part_ != Part::kFirst) block.key = part_ == Part::kInner ? inner : last;
    if (part_ != Part::kLast) block.end = part_ == Part::kFirst ? inner : last;
    return block.key < block.end;
  }

  const GroupTile& tile_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  Part part_ = Part::kAll;
  const bool* fresh_ = nullptr;
};

// Steps of one block whose weights wait for their P.V.
struct Batch {
  int64_t key = 0;
  int64_t groups = 0;
};

}  // namespace
}  // namespace attnd::kernels::cpu::amx
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_AMX_STEPS_H_
