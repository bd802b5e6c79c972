// A GPU's memory and pinned memory as sources of slabs.
#ifndef ATTND_SERVER_EXECUTOR_CUDA_MEMORY_H_
#define ATTND_SERVER_EXECUTOR_CUDA_MEMORY_H_

#include <memory>
#include <utility>

#include "server/executor/cuda.h"
#include "server/memory/block.h"
#include "server/regions/region.h"

namespace attnd::server {

// Null for want of memory; any other error shows with the next call that returns a status.
class DeviceBlocks final : public BlockAllocator {
 public:
  explicit DeviceBlocks(std::shared_ptr<Cuda> cuda) : cuda_(std::move(cuda)) {}
  unsigned char* New(int64_t block_bytes) override {
    const absl::StatusOr<void*> memory = cuda_->NewDeviceMemory(block_bytes);
    return memory.ok() ? static_cast<unsigned char*>(*memory) : nullptr;
  }
  void Free(unsigned char* block, int64_t) override { cuda_->FreeDeviceMemory(block); }

 private:
  const std::shared_ptr<Cuda> cuda_;
};

class PinnedBlocks final : public BlockAllocator {
 public:
  explicit PinnedBlocks(std::shared_ptr<Cuda> cuda) : cuda_(std::move(cuda)) {}
  unsigned char* New(int64_t block_bytes) override {
    const absl::StatusOr<void*> memory = cuda_->NewPinnedMemory(block_bytes);
    return memory.ok() ? static_cast<unsigned char*>(*memory) : nullptr;
  }
  void Free(unsigned char* block, int64_t) override { cuda_->FreePinnedMemory(block); }

 private:
  const std::shared_ptr<Cuda> cuda_;
};

// Memory of callers: the bus reads it and writes it as it does pinned memory.
class CudaPageLocker final : public PageLocker {
 public:
  explicit CudaPageLocker(std::shared_ptr<Cuda> cuda) : cuda_(std::move(cuda)) {}
  absl::Status Lock(void* memory, int64_t size_bytes) override {
    return cuda_->PinMemory(memory, size_bytes);
  }
  void Unlock(void* memory) override { cuda_->UnpinMemory(memory); }

 private:
  const std::shared_ptr<Cuda> cuda_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_EXECUTOR_CUDA_MEMORY_H_
