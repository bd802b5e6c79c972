#include "server/executor/cuda_runtime.h"

#include <cuda_runtime_api.h>

#include <vector>

#include "kernels/cuda/cuda_status.h"

namespace attnd::server {
namespace {

cudaStream_t ToCuda(kernels::Stream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t ToCuda(CudaEvent event, int) { return static_cast<cudaEvent_t>(event); }

// Whether a copy's bytes follow each other on both sides.
bool IsRun(const CudaCopy& c) {
  return c.rows == 1 || (c.to_pitch_bytes == c.row_bytes && c.from_pitch_bytes == c.row_bytes);
}

// Copies of bytes that follow each other. Given to CUDA one by one, some 4 us lie between two of
// them; together they go through the bus without a gap: of 256 KiB each, 50 GB/s for 34 (H200).
class Runs {
 public:
  void Add(const CudaCopy& copy) {
    const auto size_bytes = static_cast<size_t>(copy.row_bytes * copy.rows);
    if (size_bytes == 0) return;
    to_.push_back(copy.to);
    from_.push_back(copy.from);
    sizes_bytes_.push_back(size_bytes);
  }

  absl::Status CopyAsync(cudaStream_t stream) {
    if (to_.empty()) return absl::OkStatus();
    if (to_.size() == 1) {
      ATTND_CUDA_RETURN_IF_ERROR(
          cudaMemcpyAsync(to_[0], from_[0], sizes_bytes_[0], cudaMemcpyDefault, stream));
      return absl::OkStatus();
    }
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    size_t from_the_first = 0;
    ATTND_CUDA_RETURN_IF_ERROR(cudaMemcpyBatchAsync(to_.data(), from_.data(), sizes_bytes_.data(),
                                                    to_.size(), &attributes, &from_the_first, 1,
                                                    stream));
    return absl::OkStatus();
  }

 private:
  std::vector<void*> to_;
  std::vector<const void*> from_;
  std::vector<size_t> sizes_bytes_;
};

class CudaRuntime final : public Cuda {
 public:
  explicit CudaRuntime(int device) : device_(device) {}

  absl::StatusOr<int64_t> FreeDeviceBytes() override {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    ATTND_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_));
    ATTND_CUDA_RETURN_IF_ERROR(cudaMemGetInfo(&free_bytes, &total_bytes));
    return static_cast<int64_t>(free_bytes);
  }

  absl::StatusOr<void*> NewDeviceMemory(int64_t size_bytes) override {
    void* memory = nullptr;
    ATTND_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_));
    ATTND_CUDA_RETURN_IF_ERROR(cudaMalloc(&memory, static_cast<size_t>(size_bytes)));
    return memory;
  }
  // What is freed at the end has no one to report to.
  void FreeDeviceMemory(void* memory) override { cudaFree(memory); }

  absl::StatusOr<void*> NewPinnedMemory(int64_t size_bytes) override {
    void* memory = nullptr;
    ATTND_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_));
    ATTND_CUDA_RETURN_IF_ERROR(
        cudaHostAlloc(&memory, static_cast<size_t>(size_bytes), cudaHostAllocPortable));
    return memory;
  }
  void FreePinnedMemory(void* memory) override { cudaFreeHost(memory); }

  absl::Status PinMemory(void* memory, int64_t size_bytes) override {
    ATTND_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_));
    const cudaError_t error =
        cudaHostRegister(memory, static_cast<size_t>(size_bytes), cudaHostRegisterPortable);
    if (error == cudaSuccess) return absl::OkStatus();
    cudaGetLastError();  // the memory's fault: the next call is not to be blamed for it
    return absl::ResourceExhaustedError(
        absl::StrCat("cudaHostRegister of ", size_bytes, " bytes: ", cudaGetErrorString(error)));
  }
  void UnpinMemory(void* memory) override { cudaHostUnregister(memory); }

  absl::StatusOr<kernels::Stream> NewStream() override {
    cudaStream_t stream = nullptr;
    ATTND_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_));
    ATTND_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
  }
  void FreeStream(kernels::Stream stream) override { cudaStreamDestroy(ToCuda(stream)); }

  absl::StatusOr<CudaEvent> NewEvent() override {
    cudaEvent_t event = nullptr;
    ATTND_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_));
    ATTND_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
  }
  void FreeEvent(CudaEvent event) override { cudaEventDestroy(ToCuda(event, 0)); }

  absl::Status CopyAsync(absl::Span<const CudaCopy> copies, kernels::Stream stream) override {
    ATTND_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_));
    Runs runs;
    for (const CudaCopy& c : copies) {
      if (IsRun(c)) {
        runs.Add(c);
        continue;
      }
      ATTND_CUDA_RETURN_IF_ERROR(cudaMemcpy2DAsync(
          c.to, static_cast<size_t>(c.to_pitch_bytes), c.from,
          static_cast<size_t>(c.from_pitch_bytes), static_cast<size_t>(c.row_bytes),
          static_cast<size_t>(c.rows), cudaMemcpyDefault, ToCuda(stream)));
    }
    return runs.CopyAsync(ToCuda(stream));
  }

  absl::Status Record(CudaEvent event, kernels::Stream stream) override {
    ATTND_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_));
    ATTND_CUDA_RETURN_IF_ERROR(cudaEventRecord(ToCuda(event, 0), ToCuda(stream)));
    return absl::OkStatus();
  }

  absl::Status StreamWait(kernels::Stream stream, CudaEvent event) override {
    ATTND_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(ToCuda(stream), ToCuda(event, 0), 0));
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Passed(CudaEvent event) override {
    const cudaError_t error = cudaEventQuery(ToCuda(event, 0));
    if (error == cudaErrorNotReady) return false;
    ATTND_CUDA_RETURN_IF_ERROR(error);
    return true;
  }

  absl::Status Wait(kernels::Stream stream) override {
    ATTND_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(ToCuda(stream)));
    return absl::OkStatus();
  }

 private:
  const int device_;
};

}  // namespace

absl::StatusOr<int> CountCudaDevices() {
  int count = 0;
  ATTND_CUDA_RETURN_IF_ERROR(cudaGetDeviceCount(&count));
  if (count == 0) return absl::FailedPreconditionError("there is no GPU");
  return count;
}

absl::StatusOr<std::shared_ptr<Cuda>> OpenCuda(int ordinal) {
  ATTND_CUDA_RETURN_IF_ERROR(cudaSetDevice(ordinal));
  // Starts the context; some faults of a device show here only.
  ATTND_CUDA_RETURN_IF_ERROR(cudaFree(nullptr));
  return std::make_shared<CudaRuntime>(ordinal);
}

absl::StatusOr<CudaDeviceFacts> ReadCudaFacts(int ordinal) {
  cudaDeviceProp properties;
  ATTND_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, ordinal));
  return CudaDeviceFacts{properties.name, properties.multiProcessorCount};
}

}  // namespace attnd::server
