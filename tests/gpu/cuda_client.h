// A client's side of a GPU: memory that it allocates, fills and exports.
#ifndef ATTND_TESTS_GPU_CUDA_CLIENT_H_
#define ATTND_TESTS_GPU_CUDA_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/region.h"

namespace attnd::testing {

enum class CudaKind { kMalloc, kVmm };  // of cudaMalloc, of cuMemCreate

// One allocation, and a stream with an event for it. Of one thread.
class CudaAllocation {
 public:
  // Of at least so many bytes, on this GPU.
  static absl::StatusOr<std::unique_ptr<CudaAllocation>> New(CudaKind kind, int64_t size_bytes,
                                                             int ordinal = 0);
  virtual ~CudaAllocation() = default;

  // What Client::ShareCudaMemory takes, without the event.
  virtual const CudaMemory& exported() const = 0;
  virtual absl::StatusOr<std::array<unsigned char, 64>> ExportEvent() = 0;

  // Enqueues a function of the host's, then a copy, then the event. Once.
  virtual absl::Status CopyBehind(std::function<void()> first, void* to, const void* from,
                                  int64_t size_bytes) = 0;
  // Both wait until it is done.
  virtual absl::Status CopyIn(void* to, const void* from, int64_t size_bytes) = 0;
  virtual absl::Status CopyOut(void* to, const void* from, int64_t size_bytes) = 0;
};

// GPUs that this process sees; 0 where there is none.
int CountGpus();

}  // namespace attnd::testing

#endif  // ATTND_TESTS_GPU_CUDA_CLIENT_H_
