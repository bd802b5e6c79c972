// The decode kernel for AVX2 with FMA and F16C; this file's flags stand in kernels/CMakeLists.txt.
#include "kernels/cpu/decode_body.h"

namespace attnd::kernels::cpu {

static_assert(kVectorBytes == 32);
constinit const DecodeKernel kDecodeAvx2 = MakeDecodeKernel("avx2");

}  // namespace attnd::kernels::cpu
