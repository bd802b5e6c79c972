// Which masks a kernel is compiled for.
#ifndef ATTND_KERNELS_CUDA_FAMILY_H_
#define ATTND_KERNELS_CUDA_FAMILY_H_

namespace attnd::kernels::cuda {

// As kernels/launch_key.h has them.
enum class KernelFamily { kFull, kCausal, kGeneral };

}  // namespace attnd::kernels::cuda

#endif  // ATTND_KERNELS_CUDA_FAMILY_H_
