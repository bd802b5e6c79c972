// What the processor and the operating system support, asked at run time.
#ifndef ATTND_KERNELS_CPU_FEATURES_H_
#define ATTND_KERNELS_CPU_FEATURES_H_

#include "absl/status/status.h"

namespace attnd::kernels::cpu {

#if defined(__x86_64__)
// OK, or FAILED_PRECONDITION naming the first thing that is missing. Each holds for all that the
// kernels of that name use.
absl::Status Avx2Available();
absl::Status Avx512Available();
absl::Status Avx512BF16Available();
// Where that is available: OK on AMD's processors, which multiply a pair of bf16 in the time of one
// fp32 number (Zen 4); FAILED_PRECONDITION on others. Sapphire Rapids takes four times as long for
// it, so that fp32 is twice as fast there.
absl::Status Avx512BF16Worthwhile();
// Asks Linux, once in the life of the process and for all its threads, for the permission to use
// the tile registers, where the processor has them.
absl::Status AmxAvailable();
#endif

}  // namespace attnd::kernels::cpu

#endif  // ATTND_KERNELS_CPU_FEATURES_H_
