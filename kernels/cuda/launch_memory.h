// What launches need beside their tensors: counters in device memory, and a way to bring long
// argument lists there.
#ifndef ATTND_KERNELS_CUDA_LAUNCH_MEMORY_H_
#define ATTND_KERNELS_CUDA_LAUNCH_MEMORY_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace attnd::kernels::cuda {

// Belongs to one backend on one device. Calls come from one thread at a time, launches go to one
// stream at a time.
class LaunchMemory {
 public:
  static absl::StatusOr<std::unique_ptr<LaunchMemory>> Create();
  ~LaunchMemory();
  LaunchMemory(const LaunchMemory&) = delete;
  LaunchMemory& operator=(const LaunchMemory&) = delete;

  // Device memory, 0 between launches.
  unsigned long long* next_item() const { return counters_; }
  // Device memory, only ever added to.
  unsigned long long* poisoned_tiles() const { return counters_ + 1; }
  absl::StatusOr<uint64_t> ReadPoisonedTiles() const;

  // Copies a list to device memory of its own, in the stream's order: `data` may go when
  // this returns. What it returns is valid for launches on this stream until kSlots more calls.
  // Waits only if the copy kSlots before this one is still under way.
  absl::StatusOr<const void*> Upload(const void* data, int64_t size_bytes, cudaStream_t stream);

 private:
  static constexpr int kSlots = 8;
  struct Slot {
    void* pinned = nullptr;
    void* device = nullptr;
    int64_t size_bytes = 0;
    cudaEvent_t copied = nullptr;
  };

  LaunchMemory() = default;
  static absl::Status Grow(Slot& slot, int64_t size_bytes);

  unsigned long long* counters_ = nullptr;
  std::array<Slot, kSlots> slots_;
  int next_slot_ = 0;
};

}  // namespace attnd::kernels::cuda

#endif  // ATTND_KERNELS_CUDA_LAUNCH_MEMORY_H_
