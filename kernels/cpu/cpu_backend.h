// The CPU flash backends: one class, given the kernels of one instruction set.
#ifndef ATTND_KERNELS_CPU_CPU_BACKEND_H_
#define ATTND_KERNELS_CPU_CPU_BACKEND_H_

#include <memory>

#include "kernels/backend.h"
#include "kernels/registry.h"

namespace attnd::kernels::cpu {

// "cpu_amx", "cpu_avx512_bf16", "cpu_avx512", "cpu_avx2", "cpu_portable". Each takes every valid
// problem, in memory of a constant size per thread besides the tensors. Only where features.h says
// that it is available.
std::unique_ptr<Backend> CreatePortable(const BackendOptions& options);
#if defined(__x86_64__)
std::unique_ptr<Backend> CreateAvx2(const BackendOptions& options);
std::unique_ptr<Backend> CreateAvx512(const BackendOptions& options);
// bf16 by dot products of pairs, the rest as cpu_avx512.
std::unique_ptr<Backend> CreateAvx512BF16(const BackendOptions& options);
// Halves with AMX, fp32 as cpu_avx512.
std::unique_ptr<Backend> CreateAmx(const BackendOptions& options);
#endif

}  // namespace attnd::kernels::cpu

#endif  // ATTND_KERNELS_CPU_CPU_BACKEND_H_
