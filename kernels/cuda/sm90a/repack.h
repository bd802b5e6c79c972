// Copies tensors that the kernels cannot read or write in place to dense ones that they can, and
// back.
#ifndef ATTND_KERNELS_CUDA_SM90A_REPACK_H_
#define ATTND_KERNELS_CUDA_SM90A_REPACK_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/sm90a/tensor_map.h"

namespace attnd::kernels::cuda::sm90a {

// [batch, heads, len, head_dim] with rows pitched to 16 bytes, and the bytes that it takes, a
// multiple of 256.
TensorDesc RepackedStrides(const MappedTensor& tensor);
int64_t RepackedBytes(const MappedTensor& tensor);

// In the stream's order. Strides are in elements; what lies between the target's rows is not
// written.
absl::Status CopyRows(const MappedTensor& source, void* target, const TensorDesc& target_strides,
                      cudaStream_t stream);

}  // namespace attnd::kernels::cuda::sm90a

#endif  // ATTND_KERNELS_CUDA_SM90A_REPACK_H_
