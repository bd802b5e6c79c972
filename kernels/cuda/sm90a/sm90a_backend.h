// The backend of the Hopper kernels: fp16 and bf16 on compute capability 9.0.
#ifndef ATTND_KERNELS_CUDA_SM90A_SM90A_BACKEND_H_
#define ATTND_KERNELS_CUDA_SM90A_SM90A_BACKEND_H_

#include <memory>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/registry.h"

namespace attnd::kernels::cuda {

inline constexpr char kSm90aName[] = "cuda_sm90a";

// OK if device 0 has compute capability 9.0 and the driver can describe tensors to the copy engine;
// otherwise FAILED_PRECONDITION saying what is missing.
absl::Status Sm90aAvailable();

// On the calling thread's current device, which stays the device of every later call. Null if the
// device fails. Tensors that the copy engine cannot read in place (rows that do not start at
// multiples of 16 bytes) are repacked first, in memory of the stream's order: same kernel, same
// bits.
std::unique_ptr<Backend> CreateSm90a(const BackendOptions& options);

}  // namespace attnd::kernels::cuda

#endif  // ATTND_KERNELS_CUDA_SM90A_SM90A_BACKEND_H_
