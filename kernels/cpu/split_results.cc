#include "kernels/cpu/split_results.h"

#include <algorithm>
#include <new>

#include "kernels/cpu/tiles.h"

namespace attnd::kernels::cpu {
namespace {

// Pieces of a head that are still to be finished.
using Counter = std::atomic<int64_t>;

constexpr int64_t kAlignmentBytes = 64;

int64_t RoundUp(int64_t bytes) {
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

int64_t PartialBytes(const DecodeKernel& kernel, const AttentionProblem& p) {
  return RoundUp(kernel.partial_elems(p.group(), p.head_dim) * int64_t{sizeof(float)});
}

}  // namespace

SplitResults::SplitResults(const DecodeKernel* kernel, absl::Span<const AttentionTask> tasks)
    : kernel_(kernel), tasks_(tasks), places_(tasks.size()) {
  for (size_t i = 0; i < tasks.size(); ++i) {
    const AttentionProblem& p = tasks[i].problem;
    if (p.empty() || p.q_len != 1) continue;
    Place& place = places_[i];
    place.splits = std::max<int64_t>(1, (p.kv_len + kDecodeSplitKeys - 1) / kDecodeSplitKeys);
    place.partial_elems = PartialBytes(*kernel, p) / int64_t{sizeof(float)};
    if (place.splits == 1) continue;
    const int64_t heads = p.batch * p.kv_heads;
    place.counters = bytes_;
    place.partials = place.counters + RoundUp(heads * int64_t{sizeof(Counter)});
    bytes_ = place.partials + heads * place.splits * PartialBytes(*kernel, p);
  }
}

// The result of a head that is not cut stays in scratch.
int64_t SplitResults::ScratchBytes(const DecodeKernel& kernel, const AttentionProblem& p) {
  return PartialBytes(kernel, p) + kernel.scratch_bytes(p.group(), p.head_dim);
}

void SplitResults::Begin(void* memory) {
  memory_ = static_cast<unsigned char*>(memory);
  for (size_t i = 0; i < tasks_.size(); ++i) {
    const Place& place = places_[i];
    if (place.splits == 1) continue;
    const int64_t heads = tasks_[i].problem.batch * tasks_[i].problem.kv_heads;
    auto* counters = reinterpret_cast<Counter*>(memory_ + place.counters);
    for (int64_t head = 0; head < heads; ++head) new (counters + head) Counter(place.splits);
  }
}

void SplitResults::RunItem(const WorkItem& item, void* scratch) {
  const AttentionProblem& p = item.task->problem;
  const Place& place = places_[item.task - tasks_.data()];
  const GroupTile tile = GroupTileOf(item);
  const int64_t key_end = item.key_begin + kDecodeSplitKeys;
  auto* own = static_cast<float*>(scratch);
  void* rest = own + place.partial_elems;
  if (place.splits == 1) {
    kernel_->run(tile, item.key_begin, key_end, own, rest);
    kernel_->merge(tile, own, 1);
    return;
  }
  const int64_t head = item.batch * p.kv_heads + item.head;
  float* partials = reinterpret_cast<float*>(memory_ + place.partials) +
                    head * place.splits * place.partial_elems;
  const int64_t split = item.key_begin / kDecodeSplitKeys;
  kernel_->run(tile, item.key_begin, key_end, partials + split * place.partial_elems, rest);
  auto& left = reinterpret_cast<Counter*>(memory_ + place.counters)[head];
  // Releases this piece's result, and acquires those of the others.
  if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    kernel_->merge(tile, partials, place.splits);
  }
}

}  // namespace attnd::kernels::cpu
