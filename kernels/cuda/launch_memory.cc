#include "kernels/cuda/launch_memory.h"

#include <cstring>
#include <utility>

#include "kernels/cuda/cuda_status.h"

namespace attnd::kernels::cuda {
namespace {
constexpr int64_t kCountersBytes = 2 * sizeof(unsigned long long);
}

absl::StatusOr<std::unique_ptr<LaunchMemory>> LaunchMemory::Create() {
  std::unique_ptr<LaunchMemory> memory(new LaunchMemory);
  ATTND_CUDA_RETURN_IF_ERROR(
      cudaMalloc(reinterpret_cast<void**>(&memory->counters_), kCountersBytes));
  ATTND_CUDA_RETURN_IF_ERROR(cudaMemset(memory->counters_, 0, kCountersBytes));
  for (Slot& slot : memory->slots_) {
    ATTND_CUDA_RETURN_IF_ERROR(cudaEventCreateWithFlags(&slot.copied, cudaEventDisableTiming));
  }
  return memory;
}

LaunchMemory::~LaunchMemory() {
  // Errors have no one to go to here, and the process or the device is on its way out.
  for (Slot& slot : slots_) {
    if (slot.copied) {
      cudaEventSynchronize(slot.copied);
      cudaEventDestroy(slot.copied);
    }
    cudaFreeHost(slot.pinned);
    cudaFree(slot.device);
  }
  cudaFree(counters_);
}

absl::StatusOr<uint64_t> LaunchMemory::ReadPoisonedTiles() const {
  unsigned long long tiles = 0;
  ATTND_CUDA_RETURN_IF_ERROR(
      cudaMemcpy(&tiles, poisoned_tiles(), sizeof(tiles), cudaMemcpyDeviceToHost));
  return tiles;
}

absl::Status LaunchMemory::Grow(Slot& slot, int64_t size_bytes) {
  ATTND_CUDA_RETURN_IF_ERROR(cudaFreeHost(std::exchange(slot.pinned, nullptr)));
  ATTND_CUDA_RETURN_IF_ERROR(cudaFree(std::exchange(slot.device, nullptr)));
  slot.size_bytes = 0;
  // Doubled, so that a slowly growing load does not come here each time: both calls stop the
  // device.
  const int64_t grown_bytes = 2 * size_bytes;
  ATTND_CUDA_RETURN_IF_ERROR(cudaMallocHost(&slot.pinned, grown_bytes));
  ATTND_CUDA_RETURN_IF_ERROR(cudaMalloc(&slot.device, grown_bytes));
  slot.size_bytes = grown_bytes;
  return absl::OkStatus();
}

absl::StatusOr<const void*> LaunchMemory::Upload(const void* data, int64_t size_bytes,
                                                 cudaStream_t stream) {
  Slot& slot = slots_[next_slot_];
  next_slot_ = (next_slot_ + 1) % kSlots;
  ATTND_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(slot.copied));
  if (slot.size_bytes < size_bytes) {
    if (absl::Status status = Grow(slot, size_bytes); !status.ok()) return status;
  }
  std::memcpy(slot.pinned, data, size_bytes);
  ATTND_CUDA_RETURN_IF_ERROR(
      cudaMemcpyAsync(slot.device, slot.pinned, size_bytes, cudaMemcpyHostToDevice, stream));
  ATTND_CUDA_RETURN_IF_ERROR(cudaEventRecord(slot.copied, stream));
  return slot.device;
}

}  // namespace attnd::kernels::cuda
