#include "kernels/cpu/work_list.h"

#include <algorithm>

namespace attnd::kernels::cpu {

WorkList::WorkList(absl::Span<const AttentionTask> tasks) {
  for (const AttentionTask& task : tasks) {
    const AttentionProblem& p = task.problem;
    if (p.empty()) continue;
    const Band band = p.mask.Resolve(p.q_len, p.kv_len);
    for (int64_t q_begin = 0; q_begin < p.q_len; q_begin += task.plan.q_tile) {
      const int64_t q_end = std::min(q_begin + task.plan.q_tile, p.q_len);
      const int64_t keys = band.KvRange(q_begin, q_end, p.kv_len).size();
      // One key more: a tile without keys is still written.
      const double cost = 2.0 * static_cast<double>(q_end - q_begin) *
                          static_cast<double>(keys + 1) * static_cast<double>(p.head_dim);
      runs_.push_back({&task, q_begin, cost, 0});
    }
  }
  std::stable_sort(runs_.begin(), runs_.end(),
                   [](const Run& a, const Run& b) { return a.item_cost > b.item_cost; });
  for (Run& run : runs_) {
    const int64_t items = run.task->problem.batch * run.task->problem.q_heads;
    run.first = size_;
    size_ += items;
    cost_ += run.item_cost * static_cast<double>(items);
  }
}

WorkItem WorkList::At(int64_t index) const {
  const auto after = std::upper_bound(runs_.begin(), runs_.end(), index,
                                      [](int64_t i, const Run& run) { return i < run.first; });
  const Run& run = *(after - 1);
  const int64_t item = index - run.first;
  const int64_t heads = run.task->problem.q_heads;
  return {run.task, item / heads, item % heads, run.q_begin};
}

}  // namespace attnd::kernels::cpu
