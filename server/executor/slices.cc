#include "server/executor/slices.h"

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

// Where `pieces` of the query positions end, or fewer, each with about as much to do.
std::vector<int64_t> EndsOfQueries(const kernels::AttentionTask& task, int64_t pieces) {
  const kernels::AttentionProblem& problem = task.problem;
  // Whole tiles: what a row is computed with may decide where its keys begin.
  const int64_t tile = std::max<int64_t>(1, task.plan.q_tile);
  const int64_t step = (kLeastQueries + tile - 1) / tile * tile;
  const double piece_flops = kernels::Flops(problem) / static_cast<double>(pieces);
  std::vector<int64_t> ends;
  double flops = 0;
  for (int64_t begin = 0; begin < problem.q_len; begin += step) {
    const int64_t end = std::min(begin + step, problem.q_len);
    flops += kernels::Flops(problem, begin, end);
    const bool is_full = flops >= piece_flops * static_cast<double>(ends.size() + 1);
    if (is_full && static_cast<int64_t>(ends.size()) < pieces - 1) ends.push_back(end);
  }
  if (ends.empty() || ends.back() < problem.q_len) ends.push_back(problem.q_len);
  return ends;
}

}  // namespace

std::vector<kernels::AttentionTask> CutTask(const kernels::AttentionTask& task, int64_t parts) {
  const kernels::AttentionProblem& problem = task.problem;
  if (parts <= 1 || problem.empty()) return {task};
  const int64_t all_heads = problem.batch * problem.kv_heads;
  const int64_t heads = std::max<int64_t>(1, all_heads / parts);
  const std::vector<int64_t> ends = EndsOfQueries(task, (parts + all_heads - 1) / all_heads);
  std::vector<kernels::AttentionTask> cut;
  for (int64_t entry = 0; entry < problem.batch; ++entry) {
    for (int64_t begin = 0; begin < problem.kv_heads; begin += heads) {
      kernels::AttentionTask part =
          Part(task, entry, begin, std::min(begin + heads, problem.kv_heads));
      for (const int64_t end : ends) {
        part.q_end = end;
        cut.push_back(part);
        part.q_begin = end;
      }
    }
  }
  return cut;
}

}  // namespace attnd::server
