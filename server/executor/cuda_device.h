// A GPU as a device: its memory, its streams, and the slices in which large batches go through
// them.
#ifndef ATTND_SERVER_EXECUTOR_CUDA_DEVICE_H_
#define ATTND_SERVER_EXECUTOR_CUDA_DEVICE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "server/executor/cuda.h"
#include "server/executor/cuda_ipc.h"
#include "server/executor/cuda_layout.h"
#include "server/executor/device.h"

namespace attnd::server {

// One batch uploads, one runs, one downloads.
inline constexpr int kCudaBatches = 3;
// Kernels of some slices run side by side, so that the next ones fill what the first leave idle:
// two fill the GPU, the others take over tile by tile where those end. Each stream has a backend of
// its own, as a backend's launches go to one stream at a time.
inline constexpr int kRunStreams = 4;

struct CudaDeviceOptions {
  // Of the GPU's memory, for requests under way. 0: kDeviceShare of what is free at the start.
  int64_t device_bytes = 0;
  SliceSize slice{};
  // Null: callers' own memory on the GPU is not used.
  std::shared_ptr<CudaIpc> ipc{};
};
inline constexpr double kDeviceShare = 0.8;

// `backends`: kRunStreams of them, alike, on this GPU. Fails as `cuda` does.
//
// Tensors of callers that lie on the GPU are used there, and nothing of them is copied. Of the
// others a request's lie in one block of the pool, bases aligned to 256 bytes, rows to 16. Tensors
// of at most 32 KiB travel together instead, one copy each way for the batch. A batch of one slice
// goes through its stages one by one. In a larger one each slice goes on by itself as soon as it is
// there, and is given to the streams only shortly before its turn, so that small batches pass
// between slices; its upload stage then begins everything, and the others only see the rest done.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(
    std::shared_ptr<Cuda> cuda, std::vector<std::unique_ptr<kernels::Backend>> backends,
    const DeviceDescription& description, const CudaDeviceOptions& options);

}  // namespace attnd::server

#endif  // ATTND_SERVER_EXECUTOR_CUDA_DEVICE_H_
