// Elements of 16 bits, as tags: kernels hold them as bits, two a word, and convert them with the
// instructions of ptx.cuh. The toolkit's cuda_fp16.h and cuda_bf16.h would cost each instance half
// a second of parsing for each architecture.
#ifndef ATTND_KERNELS_CUDA_ELEMENT_CUH_
#define ATTND_KERNELS_CUDA_ELEMENT_CUH_

#include <cstdint>

namespace attnd::kernels::cuda {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

}  // namespace attnd::kernels::cuda

#endif  // ATTND_KERNELS_CUDA_ELEMENT_CUH_
