#include "server/executor/head_slices.h"

#include <algorithm>

namespace attnd::server {
namespace {

const void* Advance(const void* tensor, int64_t elems, kernels::DType dtype) {
  if (tensor == nullptr) return nullptr;
  return static_cast<const unsigned char*>(tensor) + elems * kernels::SizeBytes(dtype);
}

// KV heads [begin, end) of a batch entry.
kernels::AttentionTask Part(const kernels::AttentionTask& whole, int64_t entry, int64_t begin,
                            int64_t end) {
  kernels::AttentionTask part = whole;
  const int64_t group = whole.problem.group();
  part.problem.batch = 1;
  part.problem.kv_heads = end - begin;
  part.problem.q_heads = (end - begin) * group;
  const auto offset = [&](const kernels::Strides& strides, int64_t head) {
    return entry * strides.batch + head * strides.head;
  };
  const kernels::DType dtype = whole.problem.dtype;
  kernels::AttentionArgs& args = part.args;
  args.q = Advance(args.q, offset(args.q_strides, begin * group), dtype);
  args.k = Advance(args.k, offset(args.k_strides, begin), dtype);
  args.v = Advance(args.v, offset(args.v_strides, begin), dtype);
  args.o = const_cast<void*>(Advance(args.o, offset(args.o_strides, begin * group), dtype));
  if (args.lse != nullptr) {
    args.lse += entry * args.lse_batch_stride + begin * group * args.lse_head_stride;
  }
  if (args.alibi_slopes != nullptr) args.alibi_slopes += begin * group;
  return part;
}

}  // namespace

std::vector<kernels::AttentionTask> CutByHeads(const kernels::AttentionTask& task, int64_t parts) {
  const kernels::AttentionProblem& problem = task.problem;
  if (parts <= 1 || problem.empty() || problem.batch * problem.kv_heads == 1) return {task};
  const int64_t heads = std::max<int64_t>(1, problem.batch * problem.kv_heads / parts);
  std::vector<kernels::AttentionTask> cut;
  for (int64_t entry = 0; entry < problem.batch; ++entry) {
    for (int64_t begin = 0; begin < problem.kv_heads; begin += heads) {
      cut.push_back(Part(task, entry, begin, std::min(begin + heads, problem.kv_heads)));
    }
  }
  return cut;
}

}  // namespace attnd::server
