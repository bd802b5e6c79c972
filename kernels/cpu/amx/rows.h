// Where a task's rows lie in the caller's tensors. Included by the AMX kernel's unit alone.
#ifndef ATTND_KERNELS_CPU_AMX_ROWS_H_
#define ATTND_KERNELS_CPU_AMX_ROWS_H_

#include "kernels/cpu/flash_kernel.h"
#include "kernels/cpu/vector.h"

// NOLINTBEGIN(misc-definitions-in-headers): internal linkage is the point, see flash_kernel.h.
namespace attnd::kernels::cpu::amx {
namespace {

// Row `row` of the task in Q.
ATTND_CPU_INLINE const unsigned char* QueryRow(const GroupTile& tile, int64_t row) {
  const int64_t task_row = tile.row_begin + row;
  return tile.q + task_row / tile.group * tile.q_row_stride_bytes +
         task_row % tile.group * tile.q_head_stride_bytes;
}

// A walk over a task's rows in one tensor: their addresses, without a division for each. To be kept
// in a local variable, where stores of vectors cannot alias it.
template <typename Pointer>
class RowWalk {
 public:
  RowWalk(const GroupTile& tile, int64_t row, Pointer base, int64_t row_stride, int64_t head_stride)
      : at_(base + (tile.row_begin + row) / tile.group * row_stride +
            (tile.row_begin + row) % tile.group * head_stride),
        head_((tile.row_begin + row) % tile.group),
        group_(tile.group),
        head_stride_(head_stride),
        next_position_(row_stride - tile.group * head_stride) {}

  // The present row; the next one is it afterwards.
  ATTND_CPU_INLINE Pointer Next() {
    const Pointer at = at_;
    at_ += head_stride_;
    if (++head_ == group_) {
      head_ = 0;
      at_ += next_position_;
    }
    return at;
  }

 private:
  Pointer at_;
  int64_t head_;
  int64_t group_;
  int64_t head_stride_;
  int64_t next_position_;
};

}  // namespace
}  // namespace attnd::kernels::cpu::amx
// NOLINTEND(misc-definitions-in-headers)

#endif  // ATTND_KERNELS_CPU_AMX_ROWS_H_
