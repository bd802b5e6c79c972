// The kernel for the compiler's baseline; this file's flags stand in kernels/CMakeLists.txt.
#include "kernels/cpu/flash_body.h"

namespace attnd::kernels::cpu {

static_assert(kVectorBytes == 16);
constinit const FlashKernel kFlashPortable = MakeFlashKernel("portable");

}  // namespace attnd::kernels::cpu
