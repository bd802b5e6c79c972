// The backend of the generic kernels: any GPU from sm_80 on.
#ifndef ATTND_KERNELS_CUDA_GENERIC_GENERIC_BACKEND_H_
#define ATTND_KERNELS_CUDA_GENERIC_GENERIC_BACKEND_H_

#include <memory>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/registry.h"

namespace attnd::kernels::cuda {

inline constexpr char kGenericName[] = "cuda_generic";

// OK if there is a driver and device 0 is sm_80 or later; otherwise FAILED_PRECONDITION saying what
// is missing.
absl::Status GenericAvailable();

// On the calling thread's current device, which stays the device of every later call. Null if the
// device fails.
std::unique_ptr<Backend> CreateGeneric(const BackendOptions& options);

}  // namespace attnd::kernels::cuda

#endif  // ATTND_KERNELS_CUDA_GENERIC_GENERIC_BACKEND_H_
