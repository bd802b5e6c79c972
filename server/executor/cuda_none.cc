// cuda_runtime.h in builds without CUDA.
#include "server/executor/cuda_runtime.h"

namespace attnd::server {
namespace {

absl::Status WithoutCuda() { return absl::UnimplementedError("this build has no CUDA"); }

}  // namespace

absl::StatusOr<int> CountCudaDevices() { return WithoutCuda(); }
absl::StatusOr<std::shared_ptr<Cuda>> OpenCuda(int) { return WithoutCuda(); }
absl::StatusOr<CudaDeviceFacts> ReadCudaFacts(int) { return WithoutCuda(); }
absl::StatusOr<std::shared_ptr<CudaIpc>> OpenCudaIpc(int) { return WithoutCuda(); }

}  // namespace attnd::server
