// A case laid out in memory, with everything around and between its tensors poisoned.
#ifndef ATTND_TESTS_CASES_MEMORY_H_
#define ATTND_TESTS_CASES_MEMORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/backend.h"
#include "tests/cases/buffer.h"
#include "tests/cases/case.h"
#include "tests/cases/values.h"

namespace attnd::testing {

// Keys at the edge of what rows see: the first key after the middle row's last, and the last before
// its first. Some rows see them and others, of the same tile, do not; only the former may be
// touched.
enum class EdgePoison {
  kNone,
  kValues,  // NaN in one element of those V rows
  kKeys,    // NaN and Inf in one element of those K rows
};

struct MemoryOptions {
  uint64_t seed = 1;
  Placement placement = Placement::kSnug;
  // K and V rows that no row sees hold NaN and Inf.
  bool poison_hidden_keys = true;
  EdgePoison edge = EdgePoison::kNone;
  // >= 0: all sequences of a packed case but this one hold NaN.
  int only_sequence = -1;
  bool want_lse = true;
  // Keeps a copy of the inputs, to see whether they were written to.
  bool watch_inputs = true;
};

class CaseMemory {
 public:
  CaseMemory(const Case& c, const MemoryOptions& options);
  CaseMemory(const CaseMemory&) = delete;
  CaseMemory& operator=(const CaseMemory&) = delete;

  const std::vector<kernels::AttentionProblem>& problems() const { return problems_; }
  const std::vector<kernels::AttentionArgs>& args() const { return args_; }
  // Problem, plan and memory, as Run takes them. With only_sequence: that task alone.
  std::vector<kernels::AttentionTask> Tasks(const kernels::Backend& backend) const;

  // For tests that place numbers of their own; before the first Run.
  Buffer& q() { return q_; }
  Buffer& k() { return k_; }
  Buffer& v() { return v_; }
  // Call it after placing numbers: inputs must not change from here on.
  void FreezeInputs();

  void ResetOutputs();
  // Empty, or what is wrong: an input changed, an output element unwritten, a write outside.
  std::string Check() const;

  // The inputs of problem i as they lie in memory, rounded, dense.
  Values ReadInputs(size_t i) const;

  // Dense [batch, q_heads, q_len, head_dim] and [batch, q_heads, q_len] of problem i.
  std::vector<double> Output(size_t i) const { return o_.Get(i); }
  std::vector<double> Lse(size_t i) const { return lse_.Get(i); }
  // Bytes, dense: for comparing bits.
  enum class Which { kO, kLse, kBoth };
  std::vector<unsigned char> OutputBits(size_t i, Which which = Which::kBoth) const;

 private:
  void PoisonHiddenKeys(size_t i);
  void PoisonEdgeKeys(size_t i, EdgePoison edge);

  MemoryOptions options_;
  std::vector<kernels::AttentionProblem> problems_;
  Buffer q_;
  Buffer k_;
  Buffer v_;
  Buffer o_;
  Buffer lse_;
  std::vector<float> alibi_slopes_;
  std::vector<kernels::AttentionArgs> args_;
};

}  // namespace attnd::testing

#endif  // ATTND_TESTS_CASES_MEMORY_H_
