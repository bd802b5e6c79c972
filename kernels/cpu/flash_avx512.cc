// The kernel for AVX-512 (F, BW, DQ, VL); this file's flags stand in kernels/CMakeLists.txt.
#include "kernels/cpu/flash_body.h"

namespace attnd::kernels::cpu {

static_assert(kVectorBytes == 64);
constinit const FlashKernel kFlashAvx512 = MakeFlashKernel("avx512");

}  // namespace attnd::kernels::cpu
