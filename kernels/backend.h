// A backend: one implementation of attention for one kind of hardware.
#ifndef ATTND_KERNELS_BACKEND_H_
#define ATTND_KERNELS_BACKEND_H_

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/attention.h"
#include "kernels/launch_key.h"

namespace attnd::kernels {

// How one problem will be computed: decided once, for the whole problem, from the problem alone, so
// that a row's bits depend on nothing else. Printable.
struct KernelPlan {
  std::string kernel;  // KernelName(key, arch)
  LaunchKey key;
  int64_t q_tile = 0;   // rows
  int64_t kv_tile = 0;  // keys
};

struct AttentionTask {
  AttentionProblem problem;
  KernelPlan plan;
  AttentionArgs args;
  // Query positions to compute, those beyond q_len aside; nothing of O and LSE at the others is
  // written. By default all, which is what tasks for backends of device memory have.
  int64_t q_begin = 0;
  int64_t q_end = std::numeric_limits<int64_t>::max();
};

// A CUDA stream; null on a CPU, where Run returns when the answers are there.
using Stream = void*;

// Invariants.
//  1. A row's bits depend only on its own q_len, kv_len, group, head_dim, dtype, mask, scale and
//  the backend; never on
//     batch, heads, the other tasks, threads, alignment, strides, or which of the other rows are
//     computed with it.
//  2. Nothing outside the tensors is read or written; a hidden key never touches a result.
// Supports, Plan and WorkspaceBytes may be called from any thread at any time. Run is called by one
// thread at a time.
class Backend {
 public:
  virtual ~Backend() = default;

  // As ATTND_BACKEND and --backend name it.
  virtual absl::string_view Name() const = 0;

  // OK, or UNIMPLEMENTED saying what would be needed. The problem has passed Validate().
  virtual absl::Status Supports(const AttentionProblem& problem) const = 0;

  // The problem is supported.
  virtual KernelPlan Plan(const AttentionProblem& problem) const = 0;

  // Scratch memory that Run needs for these tasks together: by their problems and plans alone, and
  // never more for some of them, or for some of a problem's batch entries, KV heads and queries.
  virtual int64_t WorkspaceBytes(absl::Span<const AttentionTask> tasks) const = 0;

  // Computes every task: different problems in one call. `workspace` holds WorkspaceBytes(tasks),
  // aligned to 64 bytes; null if that is 0. The memory of the tasks stays valid until the stream
  // has passed this call. On failure the outputs are undefined and nothing else is touched.
  virtual absl::Status Run(absl::Span<const AttentionTask> tasks, void* workspace,
                           Stream stream) = 0;
};

}  // namespace attnd::kernels

#endif  // ATTND_KERNELS_BACKEND_H_
