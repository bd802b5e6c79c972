#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

#include "kernels/cuda/cuda_status.h"
#include "tests/bench/device_tasks.h"

namespace attnd::bench {
namespace {

using kernels::AttentionProblem;
using kernels::AttentionTask;
using kernels::Strides;

// From a tensor's first element to its last; strides are not negative. 0 for an empty one.
int64_t SpanBytes(const AttentionProblem& p, int64_t heads, int64_t len, const Strides& s) {
  if (p.batch == 0 || heads == 0 || len == 0) return 0;
  const int64_t last = (p.batch - 1) * s.batch + (heads - 1) * s.head + (len - 1) * s.row;
  return (last + p.head_dim) * SizeBytes(p.dtype);
}

class CudaTasks final : public DeviceTasks {
 public:
  explicit CudaTasks(kernels::Backend& backend) : backend_(backend) {}
  // Errors have no one to go to here.
  ~CudaTasks() override {
    for (void* memory : memory_) cudaFree(memory);
    for (cudaEvent_t event : {begin_, end_}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  absl::Status Create(absl::Span<const AttentionTask> tasks) {
    ATTND_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    ATTND_CUDA_RETURN_IF_ERROR(cudaEventCreate(&begin_));
    ATTND_CUDA_RETURN_IF_ERROR(cudaEventCreate(&end_));
    for (const AttentionTask& task : tasks) {
      if (absl::Status status = backend_.Supports(task.problem); !status.ok()) return status;
      if (absl::Status status = Add(task); !status.ok()) return status;
    }
    const absl::StatusOr<void*> workspace = New(backend_.WorkspaceBytes(tasks_));
    if (!workspace.ok()) return workspace.status();
    workspace_ = *workspace;
    return absl::OkStatus();
  }

  absl::StatusOr<double> RunUs(int64_t runs) override {
    ATTND_CUDA_RETURN_IF_ERROR(cudaEventRecord(begin_, stream_));
    for (int64_t i = 0; i < runs; ++i) {
      if (absl::Status status = backend_.Run(tasks_, workspace_, stream_); !status.ok()) {
        return status;
      }
    }
    ATTND_CUDA_RETURN_IF_ERROR(cudaEventRecord(end_, stream_));
    ATTND_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(end_));
    float elapsed_ms = 0;
    ATTND_CUDA_RETURN_IF_ERROR(cudaEventElapsedTime(&elapsed_ms, begin_, end_));
    return 1e3 * static_cast<double>(elapsed_ms);
  }

  absl::Status CopyOutputs() override {
    for (const Output& output : outputs_) {
      ATTND_CUDA_RETURN_IF_ERROR(
          cudaMemcpy(output.host, output.device, output.bytes, cudaMemcpyDeviceToHost));
    }
    return absl::OkStatus();
  }

 private:
  struct Output {
    void* host = nullptr;
    const void* device = nullptr;
    size_t bytes = 0;
  };

  absl::StatusOr<void*> New(int64_t bytes) {
    if (bytes == 0) return nullptr;
    void* memory = nullptr;
    ATTND_CUDA_RETURN_IF_ERROR(cudaMalloc(&memory, static_cast<size_t>(bytes)));
    memory_.push_back(memory);
    return memory;
  }

  // With what lies between its elements, outputs too: they are as the host has them until they are
  // written.
  template <typename T>
  absl::Status Bring(T*& tensor, int64_t bytes) {
    const absl::StatusOr<void*> copy = New(bytes);
    if (!copy.ok()) return copy.status();
    if (bytes > 0) {
      ATTND_CUDA_RETURN_IF_ERROR(
          cudaMemcpy(*copy, tensor, static_cast<size_t>(bytes), cudaMemcpyHostToDevice));
    }
    tensor = static_cast<T*>(*copy);
    return absl::OkStatus();
  }

  absl::Status Add(const AttentionTask& task) {
    const AttentionProblem& p = task.problem;
    AttentionTask copy = task;
    kernels::AttentionArgs& a = copy.args;
    const int64_t o_bytes = SpanBytes(p, p.q_heads, p.q_len, a.o_strides);
    const int64_t lse_elems = p.empty() ? 0
                                        : (p.batch - 1) * a.lse_batch_stride +
                                              (p.q_heads - 1) * a.lse_head_stride + p.q_len;
    absl::Status status = Bring(a.q, SpanBytes(p, p.q_heads, p.q_len, a.q_strides));
    status.Update(Bring(a.k, SpanBytes(p, p.kv_heads, p.kv_len, a.k_strides)));
    status.Update(Bring(a.v, SpanBytes(p, p.kv_heads, p.kv_len, a.v_strides)));
    status.Update(Bring(a.o, o_bytes));
    if (a.lse != nullptr) status.Update(Bring(a.lse, lse_elems * 4));
    if (p.alibi) status.Update(Bring(a.alibi_slopes, p.q_heads * 4));
    if (o_bytes > 0) outputs_.push_back({task.args.o, a.o, static_cast<size_t>(o_bytes)});
    tasks_.push_back(std::move(copy));
    return status;
  }

  kernels::Backend& backend_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  std::vector<void*> memory_;
  void* workspace_ = nullptr;
  std::vector<AttentionTask> tasks_;
  std::vector<Output> outputs_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceTasks>> CopyToDevice(kernels::Backend& backend,
                                                          absl::Span<const AttentionTask> tasks) {
  auto copied = std::make_unique<CudaTasks>(backend);
  if (absl::Status status = copied->Create(tasks); !status.ok()) return status;
  return copied;
}

}  // namespace attnd::bench
