// The query tiles of all tasks of one Run, longest first, so that no thread starts a long one when
// the others are about to finish. Tiles of one task that begin at the same row cost the same
// whatever their batch and head, and stand as one run of equal items: the list's size does not
// depend on batch or heads.
#ifndef ATTND_KERNELS_CPU_WORK_LIST_H_
#define ATTND_KERNELS_CPU_WORK_LIST_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/backend.h"

namespace attnd::kernels::cpu {

// One query tile of one head.
struct WorkItem {
  const AttentionTask* task = nullptr;
  int64_t batch = 0;
  int64_t q_head = 0;
  int64_t q_begin = 0;
};

class WorkList {
 public:
  // The tasks' plans say how tall a tile is. The tasks outlive the list.
  explicit WorkList(absl::Span<const AttentionTask> tasks);

  int64_t size() const { return size_; }
  // Multiply-adds of all items, as tiles are computed.
  double cost() const { return cost_; }
  // index in [0, size()). From any thread.
  WorkItem At(int64_t index) const;

 private:
  struct Run {
    const AttentionTask* task;
    int64_t q_begin;
    double item_cost;
    int64_t first;  // index of its first item
  };
  std::vector<Run> runs_;
  int64_t size_ = 0;
  double cost_ = 0;
};

}  // namespace attnd::kernels::cpu

#endif  // ATTND_KERNELS_CPU_WORK_LIST_H_
