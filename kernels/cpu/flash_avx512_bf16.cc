// The kernel for AVX-512 with AVX512-BF16; this file's flags stand in kernels/CMakeLists.txt.
#include "kernels/cpu/flash_body.h"

namespace attnd::kernels::cpu {

static_assert(kVectorBytes == 64 && Factors::kElems == 2);
constinit const FlashKernel kFlashAvx512BF16 = MakeFlashKernel("avx512_bf16");

}  // namespace attnd::kernels::cpu
