// CUDA's errors as absl::Status; every call of the runtime goes through this.
#ifndef ATTND_KERNELS_CUDA_CUDA_STATUS_H_
#define ATTND_KERNELS_CUDA_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace attnd::kernels::cuda {

// Out of memory is RESOURCE_EXHAUSTED, no usable device or driver FAILED_PRECONDITION; everything
// else INTERNAL, which means that the device is lost to this process.
inline absl::Status ToStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat(what, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error));
  switch (error) {
    case cudaErrorMemoryAllocation:
      cudaGetLastError();  // not sticky: taken back, so that the next call is not blamed for it
      return absl::ResourceExhaustedError(message);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
      cudaGetLastError();
      return absl::FailedPreconditionError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace attnd::kernels::cuda

#define ATTND_CUDA_RETURN_IF_ERROR(call)                                             \
  do {                                                                               \
    if (absl::Status attnd_status = ::attnd::kernels::cuda::ToStatus((call), #call); \
        !attnd_status.ok()) {                                                        \
      return attnd_status;                                                           \
    }                                                                                \
  } while (0)

#endif  // ATTND_KERNELS_CUDA_CUDA_STATUS_H_
