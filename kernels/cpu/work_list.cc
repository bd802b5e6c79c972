#include "kernels/cpu/work_list.h"

#include <algorithm>

namespace attnd::kernels::cpu {
WorkList::WorkList(absl::Span<const AttentionTask> tasks,
                   absl::FunctionRef<Cut(const AttentionProblem&)> cut_of) {
  for (const AttentionTask& task : tasks) {
    if (!task.problem.empty()) AddTask(task, cut_of(task.problem));
  }
  std::stable_sort(runs_.begin(), runs_.end(),
                   [](const Run& a, const Run& b) { return a.item_cost > b.item_cost; });
  for (Run& run : runs_) {
    const int64_t items = run.first_item.task->problem.batch * run.heads;
    run.first = size_;
    size_ += items;
    cost_ += run.item_cost * static_cast<double>(items);
  }
}

void WorkList::AddTask(const AttentionTask& task, const Cut& cut) {
  const AttentionProblem& p = task.problem;
  const Band band = p.mask.Resolve(p.q_len, p.kv_len);
  const int64_t row_of_position = cut.by_kv_head ? p.group() : 1;
  const int64_t heads = cut.by_kv_head ? p.kv_heads : p.q_heads;
  const int64_t end_rows = std::min(task.q_end, p.q_len) * row_of_position;
  const int64_t split_keys = cut.split_keys > 0 ? cut.split_keys : std::max<int64_t>(p.kv_len, 1);
  for (int64_t row = task.q_begin * row_of_position; row < end_rows; row += cut.rows) {
    const int64_t end = std::min(row + cut.rows, end_rows);
    const KeyRange keys =
        band.KvRange(row / row_of_position, (end - 1) / row_of_position + 1, p.kv_len);
    int64_t key = 0;
    do {  // once at least: rows without keys are still written
      const int64_t seen = std::min(keys.end, key + split_keys) - std::max(keys.begin, key);
      const double row_cost = static_cast<double>(std::max<int64_t>(seen, 0)) / cut.speed +
                              static_cast<double>(cut.row_keys);
      const double cost =
          2.0 * static_cast<double>(end - row) * row_cost * static_cast<double>(p.head_dim);
      runs_.push_back({{&task, 0, 0, row, end - row, key}, heads, cost, 0});
      key += split_keys;
    } while (key < p.kv_len);
  }
}

WorkItem WorkList::At(int64_t index) const {
  const auto after = std::upper_bound(runs_.begin(), runs_.end(), index,
                                      [](int64_t i, const Run& run) { return i < run.first; });
  const Run& run = *(after - 1);
  const int64_t item = index - run.first;
  WorkItem result = run.first_item;
  result.batch = item / run.heads;
  result.head = item % run.heads;
  return result;
}

}  // namespace attnd::kernels::cpu
