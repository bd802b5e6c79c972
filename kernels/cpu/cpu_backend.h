// The CPU flash backends: one class, given one of the kernels of flash_kernel.h.
#ifndef ATTND_KERNELS_CPU_CPU_BACKEND_H_
#define ATTND_KERNELS_CPU_CPU_BACKEND_H_

#include <memory>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/registry.h"

namespace attnd::kernels::cpu {

// "cpu_avx512", "cpu_avx2", "cpu_portable". Each takes every valid problem, in memory of a constant
// size per thread besides the tensors.
std::unique_ptr<Backend> CreatePortable(const BackendOptions& options);
#if defined(__x86_64__)
// Only where the check beside it is OK; otherwise FAILED_PRECONDITION names what the processor or
// the operating system lacks.
std::unique_ptr<Backend> CreateAvx2(const BackendOptions& options);
absl::Status Avx2Available();
std::unique_ptr<Backend> CreateAvx512(const BackendOptions& options);
absl::Status Avx512Available();
#endif

}  // namespace attnd::kernels::cpu

#endif  // ATTND_KERNELS_CPU_CPU_BACKEND_H_
