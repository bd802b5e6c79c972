// A GPU in host memory: copies happen when they are enqueued, events pass when a test lets them.
#ifndef ATTND_TESTS_FAKES_FAKE_CUDA_H_
#define ATTND_TESTS_FAKES_FAKE_CUDA_H_

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "kernels/sync.h"
#include "server/executor/cuda.h"

namespace attnd::fakes {

class FakeCuda final : public server::Cuda {
 public:
  ~FakeCuda() override {
    MutexLock lock(mutex_);
    for (auto& [memory, bytes] : memory_) std::free(memory);
  }

  // From now on recorded events do not pass, until Release().
  void Hold() {
    MutexLock lock(mutex_);
    held_ = true;
  }
  void Release() {
    MutexLock lock(mutex_);
    held_ = false;
  }
  // Device memory at most.
  void SetDeviceBytes(int64_t bytes) {
    MutexLock lock(mutex_);
    device_bytes_ = bytes;
  }
  int64_t copies() const {
    MutexLock lock(mutex_);
    return copies_;
  }
  // Not yet freed: memory, streams, events.
  size_t alive() const {
    MutexLock lock(mutex_);
    return memory_.size() + handles_.size();
  }
  // Memory of others that is pinned, by address.
  std::map<void*, int64_t> pinned() const {
    MutexLock lock(mutex_);
    return pinned_;
  }
  // How often a stream was told to wait for this event.
  int64_t stream_waits(server::CudaEvent event) const {
    MutexLock lock(mutex_);
    const auto found = stream_waits_.find(event);
    return found == stream_waits_.end() ? 0 : found->second;
  }
  int64_t waits() const {
    MutexLock lock(mutex_);
    return waits_;
  }

  absl::StatusOr<int64_t> FreeDeviceBytes() override {
    MutexLock lock(mutex_);
    return device_bytes_ - used_device_bytes_;
  }
  absl::StatusOr<void*> NewDeviceMemory(int64_t bytes) override {
    MutexLock lock(mutex_);
    if (used_device_bytes_ + bytes > device_bytes_) return absl::ResourceExhaustedError("no more");
    used_device_bytes_ += bytes;
    return New(bytes, bytes);
  }
  void FreeDeviceMemory(void* memory) override { Free(memory); }
  absl::StatusOr<void*> NewPinnedMemory(int64_t bytes) override {
    MutexLock lock(mutex_);
    return New(bytes, 0);
  }
  void FreePinnedMemory(void* memory) override { Free(memory); }
  absl::Status PinMemory(void* memory, int64_t bytes) override {
    MutexLock lock(mutex_);
    pinned_[memory] = bytes;
    return absl::OkStatus();
  }
  void UnpinMemory(void* memory) override {
    MutexLock lock(mutex_);
    pinned_.erase(memory);
  }
  absl::StatusOr<kernels::Stream> NewStream() override { return NewHandle(); }
  void FreeStream(kernels::Stream stream) override { FreeHandle(stream); }
  absl::StatusOr<server::CudaEvent> NewEvent() override { return NewHandle(); }
  void FreeEvent(server::CudaEvent event) override { FreeHandle(event); }

  absl::Status CopyAsync(absl::Span<const server::CudaCopy> copies, kernels::Stream) override {
    MutexLock lock(mutex_);
    for (const server::CudaCopy& c : copies) {
      ++copies_;
      for (int64_t row = 0; row < c.rows; ++row) {
        std::memcpy(static_cast<char*>(c.to) + row * c.to_pitch_bytes,
                    static_cast<const char*>(c.from) + row * c.from_pitch_bytes,
                    static_cast<size_t>(c.row_bytes));
      }
    }
    return absl::OkStatus();
  }
  absl::Status Record(server::CudaEvent, kernels::Stream) override { return absl::OkStatus(); }
  absl::Status StreamWait(kernels::Stream, server::CudaEvent event) override {
    MutexLock lock(mutex_);
    ++stream_waits_[event];
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Passed(server::CudaEvent) override {
    MutexLock lock(mutex_);
    return !held_;
  }
  absl::Status Wait(kernels::Stream) override {
    MutexLock lock(mutex_);
    ++waits_;
    return absl::OkStatus();
  }

 private:
  void* New(int64_t bytes, int64_t counted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    void* const memory = std::aligned_alloc(256, static_cast<size_t>((bytes + 255) / 256 * 256));
    std::memset(memory, 0xff, static_cast<size_t>(bytes));  // NaNs
    memory_[memory] = counted;
    return memory;
  }
  void Free(void* memory) {
    MutexLock lock(mutex_);
    used_device_bytes_ -= memory_.at(memory);
    memory_.erase(memory);
    std::free(memory);
  }
  void* NewHandle() {
    MutexLock lock(mutex_);
    void* const handle = reinterpret_cast<void*>(++last_handle_);
    handles_[handle] = true;
    return handle;
  }
  void FreeHandle(void* handle) {
    MutexLock lock(mutex_);
    handles_.erase(handle);
  }

  mutable Mutex mutex_;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t device_bytes_ ABSL_GUARDED_BY(mutex_) = int64_t{1} << 30;
  int64_t used_device_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t copies_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t waits_ ABSL_GUARDED_BY(mutex_) = 0;
  uintptr_t last_handle_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<void*, int64_t> memory_ ABSL_GUARDED_BY(mutex_);
  std::map<void*, int64_t> pinned_ ABSL_GUARDED_BY(mutex_);  // not its own
  std::map<void*, int64_t> stream_waits_ ABSL_GUARDED_BY(mutex_);
  std::map<void*, bool> handles_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attnd::fakes

#endif  // ATTND_TESTS_FAKES_FAKE_CUDA_H_
