#include <algorithm>

#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/sm90a/repack.h"

namespace attnd::kernels::cuda::sm90a {
namespace {

constexpr int64_t kElementBytes = 2;
constexpr int kThreads = 256;
// Enough for every multiprocessor of any GPU; rows beyond follow in strides.
constexpr int64_t kMaxBlocks = 4096;

__global__ void CopyRowsKernel(MappedTensor source, uint16_t* target, TensorDesc strides) {
  const int64_t rows = source.batch * source.heads * source.len;
  const int64_t warps = int64_t{gridDim.x} * (kThreads / 32);
  for (int64_t n = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32; n < rows; n += warps) {
    const int64_t row = n % source.len;
    const int64_t head = n / source.len % source.heads;
    const int64_t batch = n / source.len / source.heads;
    const auto* from = static_cast<const uint16_t*>(source.data) +
                       batch * source.strides.batch_stride + head * source.strides.head_stride +
                       row * source.strides.row_stride;
    uint16_t* to = target + batch * strides.batch_stride + head * strides.head_stride +
                   row * strides.row_stride;
    for (int64_t i = threadIdx.x & 31; i < source.head_dim; i += 32) to[i] = from[i];
  }
}

}  // namespace

TensorDesc RepackedStrides(const MappedTensor& t) {
  const int64_t pitch = (t.head_dim + 7) / 8 * 8;
  return {t.heads * t.len * pitch, t.len * pitch, pitch};
}

int64_t RepackedBytes(const MappedTensor& t) {
  return (t.batch * RepackedStrides(t).batch_stride * kElementBytes + 255) / 256 * 256;
}

absl::Status CopyRows(const MappedTensor& source, void* target, const TensorDesc& target_strides,
                      cudaStream_t stream) {
  const int64_t rows = source.batch * source.heads * source.len;
  if (rows == 0) return absl::OkStatus();
  const int64_t blocks = std::min(kMaxBlocks, (rows * 32 + kThreads - 1) / kThreads);
  CopyRowsKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      source, static_cast<uint16_t*>(target), target_strides);
  ATTND_CUDA_RETURN_IF_ERROR(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace attnd::kernels::cuda::sm90a
