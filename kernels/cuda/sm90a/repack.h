// Copies tensors that the copy engine cannot read in place into dense ones that it can.
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

// In the stream's order. `target` has RepackedStrides and is aligned to 16 bytes; what lies between
// its rows is not written.
absl::Status Repack(const MappedTensor& tensor, void* target, cudaStream_t stream);

}  // namespace attnd::kernels::cuda::sm90a

#endif  // ATTND_KERNELS_CUDA_SM90A_REPACK_H_
