// Memory and events of other processes on one host, behind an interface as cuda.h is: only
// cuda_ipc_runtime.cc needs CUDA.
#ifndef ATTND_SERVER_EXECUTOR_CUDA_IPC_H_
#define ATTND_SERVER_EXECUTOR_CUDA_IPC_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/executor/cuda.h"
#include "server/regions/gpu_memory.h"

namespace attnd::server {

using CudaUuid = std::array<unsigned char, 16>;
using CudaIpcHandle = std::array<unsigned char, 64>;

// Where memory lies, as the driver has it.
struct CudaExtent {
  unsigned char* base = nullptr;  // of the allocation
  int64_t size_bytes = 0;         // from there
  CudaUuid gpu{};
};

// One GPU's way to what other processes have there. What it is given comes from a caller: an error
// is INVALID_ARGUMENT, or RESOURCE_EXHAUSTED for want of memory, and the device goes on.
// Thread-safe.
class CudaIpc {
 public:
  virtual ~CudaIpc() = default;

  virtual absl::StatusOr<CudaUuid> Uuid() = 0;

  // A cudaIpcMemHandle_t. Opened again while it is open, it is the same address, and is to be
  // closed as often.
  virtual absl::StatusOr<void*> OpenMemory(const CudaIpcHandle& handle) = 0;
  virtual void CloseMemory(void* memory) = 0;

  // A descriptor of cuMemExportToShareableHandle, which stays the caller's. `size_bytes` may be
  // anything: more than the allocation has is refused.
  virtual absl::StatusOr<void*> MapMemory(int fd, int64_t size_bytes) = 0;
  virtual void UnmapMemory(void* memory, int64_t size_bytes) = 0;

  virtual absl::StatusOr<CudaExtent> ExtentOf(void* memory) = 0;

  // A cudaIpcEventHandle_t.
  virtual absl::StatusOr<CudaEvent> OpenEvent(const CudaIpcHandle& handle) = 0;
  virtual void CloseEvent(CudaEvent event) = 0;
};

// Takes what callers offer, on whichever of these GPUs it is.
class CudaImporter final : public GpuImporter {
 public:
  struct Gpu {
    int device = 0;  // as GpuMemory::device()
    std::string id;  // "cuda:0"
    std::shared_ptr<CudaIpc> ipc;
  };
  explicit CudaImporter(std::vector<Gpu> gpus) : gpus_(std::move(gpus)) {}

  // The offer's word is taken for nothing: the GPU and the size are those that the driver names.
  absl::StatusOr<std::unique_ptr<GpuMemory>> Import(const regions::RegisterCudaFrame& offer,
                                                    int fd) override;

 private:
  absl::StatusOr<const Gpu*> Find(const CudaUuid& uuid) const;

  const std::vector<Gpu> gpus_;
};

// "GPU-01234567-89ab-cdef-0123-456789abcdef", as nvidia-smi writes it.
std::string UuidText(const CudaUuid& uuid);

}  // namespace attnd::server

#endif  // ATTND_SERVER_EXECUTOR_CUDA_IPC_H_
