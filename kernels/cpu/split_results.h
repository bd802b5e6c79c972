// The decode problems of one Run: each KV head is cut along its keys, and whoever finishes its last
// piece puts the partial results together, in their order. So the bits do not depend on who
// computes what.
#ifndef ATTND_KERNELS_CPU_SPLIT_RESULTS_H_
#define ATTND_KERNELS_CPU_SPLIT_RESULTS_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/cpu/decode_kernel.h"
#include "kernels/cpu/work_list.h"

namespace attnd::kernels::cpu {

class SplitResults {
 public:
  // `tasks` outlive this; those with another q_len than 1 take no room.
  SplitResults(const DecodeKernel* kernel, absl::Span<const AttentionTask> tasks);

  // Of memory for partial results, beside the threads' scratch. A head that is not cut needs none.
  int64_t bytes() const { return bytes_; }

  // Scratch of one thread for this problem, whose q_len is 1.
  static int64_t ScratchBytes(const DecodeKernel& kernel, const AttentionProblem& problem);

  // `memory`: bytes(), aligned to 64 bytes. Before the first RunItem.
  void Begin(void* memory);

  // Computes one piece, cut by KV head and by kDecodeSplitKeys. From any thread.
  void RunItem(const WorkItem& item, void* scratch);

 private:
  // Where the pieces of one task lie.
  struct Place {
    int64_t splits = 1;
    int64_t partial_elems = 0;
    int64_t counters = 0;  // bytes from the start: one for each batch entry and KV head
    int64_t partials = 0;  // likewise: [batch][head][split]
  };

  const DecodeKernel* const kernel_;
  const absl::Span<const AttentionTask> tasks_;
  std::vector<Place> places_;  // by task
  int64_t bytes_ = 0;
  unsigned char* memory_ = nullptr;
};

}  // namespace attnd::kernels::cpu

#endif  // ATTND_KERNELS_CPU_SPLIT_RESULTS_H_
