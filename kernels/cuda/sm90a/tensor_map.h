// Tensor maps: how the copy engine reads a problem's tensors.
#ifndef ATTND_KERNELS_CUDA_SM90A_TENSOR_MAP_H_
#define ATTND_KERNELS_CUDA_SM90A_TENSOR_MAP_H_

#include <cuda.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/params.h"

namespace attnd::kernels::cuda::sm90a {

// [batch, heads, len, head_dim], 16-bit elements, rows' elements adjacent.
struct MappedTensor {
  const void* data;
  TensorDesc strides;
  int64_t batch;
  int64_t heads;
  int64_t len;
  int64_t head_dim;
};

// True if the copy engine can read it in place: base and strides in steps of 16 bytes, and every
// stride that is used above 0.
bool CanMap(const MappedTensor& tensor);

// True if the kernels can write it in place, rows in whole pieces of four elements: head_dim a
// multiple of 4, base and strides in steps of 8 bytes.
bool CanStore(const MappedTensor& tensor);

// The driver's encoder, found through the runtime, so that nothing links the driver.
using EncodeFunction = decltype(&cuTensorMapEncodeTiled);
absl::StatusOr<EncodeFunction> FindEncoder();

// Boxes of 64 elements by box_rows rows, in rows of 128 bytes with the 128-byte swizzle; what lies
// outside the tensor reads as zero. A tensor without elements gives a map that must not be used.
absl::Status Encode(EncodeFunction encode, const MappedTensor& tensor, bool bf16, int box_rows,
                    CUtensorMap& map);

}  // namespace attnd::kernels::cuda::sm90a

#endif  // ATTND_KERNELS_CUDA_SM90A_TENSOR_MAP_H_
