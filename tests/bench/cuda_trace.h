// When a GPU's copies and kernels were under way, from events around each.
#ifndef ATTND_TESTS_BENCH_CUDA_TRACE_H_
#define ATTND_TESTS_BENCH_CUDA_TRACE_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/sync.h"
#include "server/executor/cuda.h"

namespace attnd::bench {

enum class Work { kUpload, kKernels, kDownload };

// Thread-safe.
class CudaTrace {
 public:
  // From now on; what was traced before is dropped.
  void Start() {
    MutexLock lock(mutex_);
    spans_.clear();
    origin_ = NewEvent();
    cudaEventRecord(origin_, nullptr);
    cudaEventSynchronize(origin_);
    on_ = true;
  }
  void Stop() { on_ = false; }

  cudaEvent_t Begin(kernels::Stream stream) {
    if (!on_) return nullptr;
    const cudaEvent_t event = NewEvent();
    cudaEventRecord(event, static_cast<cudaStream_t>(stream));
    return event;
  }
  void End(Work work, cudaEvent_t begin, kernels::Stream stream) {
    if (begin == nullptr) return;
    const cudaEvent_t end = NewEvent();
    cudaEventRecord(end, static_cast<cudaStream_t>(stream));
    MutexLock lock(mutex_);
    spans_.push_back({work, begin, end});
  }

  // The share of the time from the end of the first tenth to the start of the last in which any
  // work of this kind was under way. After everything is done.
  double BusyShare(Work work) {
    MutexLock lock(mutex_);
    std::vector<std::pair<float, float>> spans;
    float last = 0;
    for (const Span& span : spans_) {
      float begin = 0;
      float end = 0;
      cudaEventElapsedTime(&begin, origin_, span.begin);
      cudaEventElapsedTime(&end, origin_, span.end);
      last = std::max(last, end);
      if (span.work == work) spans.push_back({begin, end});
    }
    std::sort(spans.begin(), spans.end());
    const float from = 0.1F * last;
    const float to = 0.9F * last;
    float busy = 0;
    float seen = from;
    for (const auto& [begin, end] : spans) {
      const float b = std::max(begin, seen);
      const float e = std::min(end, to);
      if (e > b) busy += e - b;
      seen = std::max(seen, end);
    }
    return busy / (to - from);
  }

 private:
  struct Span {
    Work work;
    cudaEvent_t begin;
    cudaEvent_t end;
  };
  static cudaEvent_t NewEvent() {
    cudaEvent_t event = nullptr;
    cudaEventCreate(&event);
    return event;
  }
  std::atomic<bool> on_{false};
  Mutex mutex_;
  cudaEvent_t origin_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::vector<Span> spans_ ABSL_GUARDED_BY(mutex_);
};

// Copies, traced; or none at all, for inputs that are on the device already.
class TracedCuda final : public server::CudaWrapper {
 public:
  TracedCuda(std::shared_ptr<server::Cuda> cuda, CudaTrace* trace)
      : CudaWrapper(std::move(cuda)), trace_(trace) {}

  absl::Status CopyAsync(absl::Span<const server::CudaCopy> copies,
                         kernels::Stream stream) override {
    if (resident || copies.empty()) return absl::OkStatus();
    cudaPointerAttributes to = {};
    cudaPointerGetAttributes(&to, copies[0].to);
    const cudaEvent_t begin = trace_->Begin(stream);
    absl::Status status = CudaWrapper::CopyAsync(copies, stream);
    trace_->End(to.type == cudaMemoryTypeDevice ? Work::kUpload : Work::kDownload, begin, stream);
    return status;
  }

  std::atomic<bool> resident{false};

 private:
  CudaTrace* const trace_;
};

class TracedBackend final : public kernels::Backend {
 public:
  TracedBackend(std::unique_ptr<kernels::Backend> backend, CudaTrace* trace)
      : backend_(std::move(backend)), trace_(trace) {}

  absl::string_view Name() const override { return backend_->Name(); }
  absl::Status Supports(const kernels::AttentionProblem& problem) const override {
    return backend_->Supports(problem);
  }
  kernels::KernelPlan Plan(const kernels::AttentionProblem& problem) const override {
    return backend_->Plan(problem);
  }
  int64_t WorkspaceBytes(absl::Span<const kernels::AttentionTask> tasks) const override {
    return backend_->WorkspaceBytes(tasks);
  }
  absl::Status Run(absl::Span<const kernels::AttentionTask> tasks, void* workspace,
                   kernels::Stream stream) override {
    const cudaEvent_t begin = trace_->Begin(stream);
    absl::Status status = backend_->Run(tasks, workspace, stream);
    trace_->End(Work::kKernels, begin, stream);
    return status;
  }

 private:
  const std::unique_ptr<kernels::Backend> backend_;
  CudaTrace* const trace_;
};

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_CUDA_TRACE_H_
