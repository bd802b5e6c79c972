#include "tests/cases/device_access.h"

#if ATTND_HAVE_CUDA
#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_status.h"
#endif

namespace attnd::testing {

#if ATTND_HAVE_CUDA
namespace {

using kernels::AttentionArgs;
using kernels::AttentionProblem;
using kernels::AttentionTask;
using kernels::Strides;

constexpr uintptr_t kPageBytes = 4096;

// Addresses [first, second), whole pages.
using Range = std::pair<uintptr_t, uintptr_t>;

void AddBytes(uintptr_t begin, uintptr_t end, std::vector<Range>& ranges) {
  ranges.push_back(
      {begin / kPageBytes * kPageBytes, (end + kPageBytes - 1) / kPageBytes * kPageBytes});
}

// A tensor that spans more than this is registered row by row: it is sparse on purpose, and
// registering would fill it.
constexpr int64_t kSparseBytes = int64_t{256} << 20;

// The pages of one tensor; strides are not negative. None for an empty one.
void AddTensor(const void* data, int64_t batch, int64_t heads, int64_t len, int64_t row_bytes,
               const Strides& strides, int64_t element_bytes, std::vector<Range>& ranges) {
  if (data == nullptr || batch == 0 || heads == 0 || len == 0) return;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const auto row_at = [&](int64_t b, int64_t h, int64_t row) {
    return begin + (b * strides.batch + h * strides.head + row * strides.row) * element_bytes;
  };
  const uintptr_t end = row_at(batch - 1, heads - 1, len - 1) + row_bytes;
  if (static_cast<int64_t>(end - begin) <= kSparseBytes) return AddBytes(begin, end, ranges);
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t row = 0; row < len; ++row) {
        AddBytes(row_at(b, h, row), row_at(b, h, row) + row_bytes, ranges);
      }
    }
  }
}

void AddTask(const AttentionTask& task, std::vector<Range>& ranges) {
  const AttentionProblem& p = task.problem;
  const AttentionArgs& a = task.args;
  const int64_t element_bytes = SizeBytes(p.dtype);
  const int64_t row_bytes = p.head_dim * element_bytes;
  AddTensor(a.q, p.batch, p.q_heads, p.q_len, row_bytes, a.q_strides, element_bytes, ranges);
  AddTensor(a.k, p.batch, p.kv_heads, p.kv_len, row_bytes, a.k_strides, element_bytes, ranges);
  AddTensor(a.v, p.batch, p.kv_heads, p.kv_len, row_bytes, a.v_strides, element_bytes, ranges);
  AddTensor(a.o, p.batch, p.q_heads, p.q_len, row_bytes, a.o_strides, element_bytes, ranges);
  AddTensor(a.lse, p.batch, p.q_heads, 1, p.q_len * 4, {a.lse_batch_stride, a.lse_head_stride, 0},
            4, ranges);
  if (p.alibi) AddTensor(a.alibi_slopes, 1, 1, 1, p.q_heads * 4, {}, 4, ranges);
}

std::vector<Range> Merged(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<Range> merged;
  for (const Range& range : ranges) {
    if (!merged.empty() && range.first <= merged.back().second) {
      merged.back().second = std::max(merged.back().second, range.second);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

// Page-locked, and at the same address for the device, until destroyed.
class Registration {
 public:
  ~Registration() {
    for (void* begin : registered_) cudaHostUnregister(begin);
  }
  absl::Status Add(const Range& range) {
    void* begin = reinterpret_cast<void*>(range.first);
    ATTND_CUDA_RETURN_IF_ERROR(
        cudaHostRegister(begin, range.second - range.first, cudaHostRegisterDefault));
    registered_.push_back(begin);
    return absl::OkStatus();
  }

 private:
  std::vector<void*> registered_;
};

}  // namespace

absl::Status RunOnDevice(kernels::Backend& backend, absl::Span<const AttentionTask> tasks) {
  std::vector<Range> ranges;
  for (const AttentionTask& task : tasks) AddTask(task, ranges);
  Registration registration;
  for (const Range& range : Merged(std::move(ranges))) {
    if (absl::Status status = registration.Add(range); !status.ok()) return status;
  }
  if (absl::Status status = backend.Run(tasks, nullptr, nullptr); !status.ok()) return status;
  ATTND_CUDA_RETURN_IF_ERROR(cudaDeviceSynchronize());
  return absl::OkStatus();
}

#else

absl::Status RunOnDevice(kernels::Backend&, absl::Span<const kernels::AttentionTask>) {
  return absl::UnimplementedError("this build has no CUDA");
}

#endif

}  // namespace attnd::testing
