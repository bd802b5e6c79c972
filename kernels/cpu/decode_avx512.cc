// The decode kernel for AVX-512 (F, BW, DQ, VL); this file's flags stand in kernels/CMakeLists.txt.
#include "kernels/cpu/decode_body.h"

namespace attnd::kernels::cpu {

static_assert(kVectorBytes == 64);
constinit const DecodeKernel kDecodeAvx512 = MakeDecodeKernel("avx512");

}  // namespace attnd::kernels::cpu
