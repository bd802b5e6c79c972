// The decode kernel for the compiler's baseline; this file's flags stand in kernels/CMakeLists.txt.
#include "kernels/cpu/decode_body.h"

namespace attnd::kernels::cpu {

static_assert(kVectorBytes == 16);
constinit const DecodeKernel kDecodePortable = MakeDecodeKernel("portable");

}  // namespace attnd::kernels::cpu
