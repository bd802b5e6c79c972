// Memory of a caller on a GPU.
#ifndef ATTND_SERVER_REGIONS_GPU_MEMORY_H_
#define ATTND_SERVER_REGIONS_GPU_MEMORY_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "server/regions/protocol/frames.h"

namespace attnd::server {

// One allocation of a caller's, mapped into this process until destroyed. Its addresses are the
// GPU's: this process' own code may not touch them.
class GpuMemory {
 public:
  virtual ~GpuMemory() = default;
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  unsigned char* base() const { return base_; }
  // As the driver has it; never a caller's word.
  int64_t size_bytes() const { return size_bytes_; }
  // Which of the server's devices has it.
  int device() const { return device_; }
  // A CudaEvent of the caller's, for what it has recorded there; null: the caller has waited
  // itself.
  void* ready() const { return ready_; }

 protected:
  GpuMemory(unsigned char* base, int64_t size_bytes, int device, void* ready)
      : base_(base), size_bytes_(size_bytes), device_(device), ready_(ready) {}

 private:
  unsigned char* const base_;
  const int64_t size_bytes_;
  const int device_;
  void* const ready_;
};

// Maps such memory. Thread-safe.
class GpuImporter {
 public:
  virtual ~GpuImporter() = default;

  // `fd` is what came with the offer and stays the caller's; -1: nothing did. INVALID_ARGUMENT for
  // what the driver does not know, and for memory on a GPU that is none of this server's, which is
  // named; RESOURCE_EXHAUSTED for want of memory or address space.
  virtual absl::StatusOr<std::unique_ptr<GpuMemory>> Import(const regions::RegisterCudaFrame& offer,
                                                            int fd) = 0;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_REGIONS_GPU_MEMORY_H_
