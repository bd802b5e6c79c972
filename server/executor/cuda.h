// The few calls of the CUDA runtime that a device needs, behind an interface: tests put host memory
// in their place, faults are injected between, and only the implementation (cuda_runtime.cc) needs
// CUDA.
#ifndef ATTND_SERVER_EXECUTOR_CUDA_H_
#define ATTND_SERVER_EXECUTOR_CUDA_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace attnd::server {

// A copy of `rows` rows of `row_bytes`; a pitch is the distance from one row to the next. Between
// host and device memory in either direction: the addresses say which.
struct CudaCopy {
  void* to = nullptr;
  int64_t to_pitch_bytes = 0;
  const void* from = nullptr;
  int64_t from_pitch_bytes = 0;
  int64_t row_bytes = 0;
  int64_t rows = 1;
};

using CudaEvent = void*;

// One GPU. Streams are kernels::Stream. Errors are those of kernels/cuda/cuda_status.h: out of
// memory is RESOURCE_EXHAUSTED, everything else that goes wrong means that the device is lost.
// Thread-safe.
class Cuda {
 public:
  virtual ~Cuda() = default;

  virtual absl::StatusOr<int64_t> FreeDeviceBytes() = 0;
  // Aligned to 256.
  virtual absl::StatusOr<void*> NewDeviceMemory(int64_t size_bytes) = 0;
  virtual void FreeDeviceMemory(void* memory) = 0;
  // Host memory that copies run to and from by themselves.
  virtual absl::StatusOr<void*> NewPinnedMemory(int64_t size_bytes) = 0;
  virtual void FreePinnedMemory(void* memory) = 0;
  // Makes memory that is there already, whole pages, what NewPinnedMemory gives, and back.
  // RESOURCE_EXHAUSTED if the system will not have it; the device goes on.
  virtual absl::Status PinMemory(void* memory, int64_t size_bytes) = 0;
  virtual void UnpinMemory(void* memory) = 0;

  virtual absl::StatusOr<kernels::Stream> NewStream() = 0;
  virtual void FreeStream(kernels::Stream stream) = 0;
  virtual absl::StatusOr<CudaEvent> NewEvent() = 0;
  virtual void FreeEvent(CudaEvent event) = 0;

  // All of them, which overlap nowhere, in any order.
  virtual absl::Status CopyAsync(absl::Span<const CudaCopy> copies, kernels::Stream stream) = 0;
  virtual absl::Status Record(CudaEvent event, kernels::Stream stream) = 0;
  // What `stream` is given from now on waits for the event.
  virtual absl::Status StreamWait(kernels::Stream stream, CudaEvent event) = 0;
  // Whether what the event was recorded after is done; true if it was never recorded.
  virtual absl::StatusOr<bool> Passed(CudaEvent event) = 0;
  // Waits for everything on the stream.
  virtual absl::Status Wait(kernels::Stream stream) = 0;
};

// Passes everything on; for those that change some of it.
class CudaWrapper : public Cuda {
 public:
  explicit CudaWrapper(std::shared_ptr<Cuda> cuda) : cuda_(std::move(cuda)) {}

  absl::StatusOr<int64_t> FreeDeviceBytes() override { return cuda_->FreeDeviceBytes(); }
  absl::StatusOr<void*> NewDeviceMemory(int64_t size_bytes) override {
    return cuda_->NewDeviceMemory(size_bytes);
  }
  void FreeDeviceMemory(void* memory) override { cuda_->FreeDeviceMemory(memory); }
  absl::StatusOr<void*> NewPinnedMemory(int64_t size_bytes) override {
    return cuda_->NewPinnedMemory(size_bytes);
  }
  void FreePinnedMemory(void* memory) override { cuda_->FreePinnedMemory(memory); }
  absl::Status PinMemory(void* memory, int64_t size_bytes) override {
    return cuda_->PinMemory(memory, size_bytes);
  }
  void UnpinMemory(void* memory) override { cuda_->UnpinMemory(memory); }
  absl::StatusOr<kernels::Stream> NewStream() override { return cuda_->NewStream(); }
  void FreeStream(kernels::Stream stream) override { cuda_->FreeStream(stream); }
  absl::StatusOr<CudaEvent> NewEvent() override { return cuda_->NewEvent(); }
  void FreeEvent(CudaEvent event) override { cuda_->FreeEvent(event); }
  absl::Status CopyAsync(absl::Span<const CudaCopy> copies, kernels::Stream stream) override {
    return cuda_->CopyAsync(copies, stream);
  }
  absl::Status Record(CudaEvent event, kernels::Stream stream) override {
    return cuda_->Record(event, stream);
  }
  absl::Status StreamWait(kernels::Stream stream, CudaEvent event) override {
    return cuda_->StreamWait(stream, event);
  }
  absl::StatusOr<bool> Passed(CudaEvent event) override { return cuda_->Passed(event); }
  absl::Status Wait(kernels::Stream stream) override { return cuda_->Wait(stream); }

 private:
  const std::shared_ptr<Cuda> cuda_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_EXECUTOR_CUDA_H_
