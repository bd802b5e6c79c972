// A launch's list of problems, as every CUDA backend makes it.
#ifndef ATTND_KERNELS_CUDA_LAUNCH_LIST_H_
#define ATTND_KERNELS_CUDA_LAUNCH_LIST_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/cuda/params.h"

namespace attnd::kernels::cuda {

// UNIMPLEMENTED, naming the dimension, where one does not fit the kernels' 32-bit lengths, or all
// together their 32-bit numbers of items.
absl::Status CheckLengths(const AttentionProblem& problem);

// True if every row starts at a multiple of 16 bytes.
bool Aligned16(const void* pointer, const Strides& strides, int64_t element_bytes);

// Everything but first_item; `aligned` speaks of all four tensors.
ProblemDesc Describe(const AttentionTask& task, int q_tile);

// Keys that the problem's costliest tile walks through: what "longest first" sorts by.
int64_t TileKeys(const ProblemDesc& desc, int q_tile);

// What DealItems reads of a list's entry: one such pair of functions beside each entry type.
inline const ProblemDesc& DescOf(const ProblemDesc& desc) { return desc; }
inline ProblemDesc& DescOf(ProblemDesc& desc) { return desc; }

// Sorts longest first and gives every problem its place in the work list. Returns the number of
// items.
template <class Entry>
int64_t DealItems(std::vector<Entry>& entries, int q_tile) {
  std::stable_sort(entries.begin(), entries.end(), [q_tile](const Entry& a, const Entry& b) {
    return TileKeys(DescOf(a), q_tile) > TileKeys(DescOf(b), q_tile);
  });
  int64_t items = 0;
  for (Entry& entry : entries) {
    ProblemDesc& desc = DescOf(entry);
    desc.first_item = items;
    items += int64_t{desc.n_q_tiles} * desc.batch * desc.q_heads;
  }
  return items;
}

}  // namespace attnd::kernels::cuda

#endif  // ATTND_KERNELS_CUDA_LAUNCH_LIST_H_
