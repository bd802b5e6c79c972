// The CUDA runtime itself, in builds that have it.
#ifndef ATTND_SERVER_EXECUTOR_CUDA_RUNTIME_H_
#define ATTND_SERVER_EXECUTOR_CUDA_RUNTIME_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/executor/cuda.h"
#include "server/executor/cuda_ipc.h"

namespace attnd::server {

struct CudaDeviceFacts {
  std::string name;
  int64_t multiprocessors = 0;
};

// GPUs that this process sees, as CUDA_VISIBLE_DEVICES has it. FAILED_PRECONDITION where there is
// no driver or no GPU, UNIMPLEMENTED in a build without CUDA. What follows has one at least.
absl::StatusOr<int> CountCudaDevices();

// Starts the device for this process and makes it the calling thread's.
absl::StatusOr<std::shared_ptr<Cuda>> OpenCuda(int ordinal);
absl::StatusOr<CudaDeviceFacts> ReadCudaFacts(int ordinal);

// cuda_ipc_runtime.cc. FAILED_PRECONDITION for a driver that lacks a call.
absl::StatusOr<std::shared_ptr<CudaIpc>> OpenCudaIpc(int ordinal);

}  // namespace attnd::server

#endif  // ATTND_SERVER_EXECUTOR_CUDA_RUNTIME_H_
