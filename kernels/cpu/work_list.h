// What the threads of one Run share out: the pieces of all its tasks, longest first, so that no
// thread starts a long one when the others are about to finish. Pieces of one task that begin at
// the same row and key cost the same whatever their batch and head, and stand as one run of equal
// items: the list's size does not depend on batch or heads.
#ifndef ATTND_KERNELS_CPU_WORK_LIST_H_
#define ATTND_KERNELS_CPU_WORK_LIST_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace attnd::kernels::cpu {

// Loaded, turned, stored, a row takes 0.18 us at head_dim 128 where a key takes 5 ns (AVX-512,
// EPYC).
inline constexpr int64_t kRowKeys = 32;
// In few_keys.h 0.03 us.
inline constexpr int64_t kRowKeysOfFew = 6;

// How a task is cut.
struct Cut {
  // True: a head is a KV head, with the rows of all query heads that read it: row r is position
  // r / group. False: a head is a query head, and a row is a position.
  bool by_kv_head = false;
  int64_t rows = 0;        // of a piece, > 0
  int64_t split_keys = 0;  // of a piece, counted from key 0; 0: all
  double speed = 1;        // of the kernel: its keys count as so much less
  // What a row costs before it meets a key and after the last one, in keys of a kernel of speed 1.
  int64_t row_keys = kRowKeys;
};

struct WorkItem {
  const AttentionTask* task = nullptr;
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t key_begin = 0;  // 0 unless the task is cut by keys
};

class WorkList {
 public:
  // The tasks outlive the list.
  WorkList(absl::Span<const AttentionTask> tasks,
           absl::FunctionRef<Cut(const AttentionProblem&)> cut_of);

  int64_t size() const { return size_; }
  // Multiply-adds of all items, as tiles are computed, over their kernels' speed.
  double cost() const { return cost_; }
  // Whether all items are known to cost the same, so that their order does not matter.
  bool IsUniform() const { return runs_.size() <= 1; }
  // index in [0, size()). From any thread.
  WorkItem At(int64_t index) const;

 private:
  struct Run {
    WorkItem first_item;
    int64_t heads;
    double item_cost;
    int64_t first;  // index of its first item
  };
  void AddTask(const AttentionTask& task, const Cut& cut);

  std::vector<Run> runs_;
  int64_t size_ = 0;
  double cost_ = 0;
};

}  // namespace attnd::kernels::cpu

#endif  // ATTND_KERNELS_CPU_WORK_LIST_H_
