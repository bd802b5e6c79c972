#include "kernels/cuda/sm90a/tensor_map.h"

#include <cuda_runtime_api.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"

namespace attnd::kernels::cuda::sm90a {
namespace {

constexpr int64_t kElementBytes = 2;
constexpr int64_t kMaxStrideBytes = (int64_t{1} << 40) - 16;

// Rows, heads, batch entries, from the inside out: how many, and how far apart.
std::array<std::pair<int64_t, int64_t>, 3> Axes(const MappedTensor& t) {
  return {{{t.len, t.strides.row_stride},
           {t.heads, t.strides.head_stride},
           {t.batch, t.strides.batch_stride}}};
}

}  // namespace

bool CanMap(const MappedTensor& t) {
  if (reinterpret_cast<uintptr_t>(t.data) % 16 != 0) return false;
  for (const auto& [count, stride] : Axes(t)) {
    const int64_t stride_bytes = stride * kElementBytes;
    if (count > 1 &&
        (stride_bytes <= 0 || stride_bytes % 16 != 0 || stride_bytes > kMaxStrideBytes)) {
      return false;
    }
  }
  return true;
}

bool CanStore(const MappedTensor& t) {
  if (reinterpret_cast<uintptr_t>(t.data) % 8 != 0 || t.head_dim % 4 != 0) return false;
  for (const auto& [count, stride] : Axes(t)) {
    if (count > 1 && stride % 4 != 0) return false;
  }
  return true;
}

absl::StatusOr<EncodeFunction> FindEncoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  ATTND_CUDA_RETURN_IF_ERROR(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                              12000, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    return absl::FailedPreconditionError("the driver has no cuTensorMapEncodeTiled (CUDA 12.0)");
  }
  return reinterpret_cast<EncodeFunction>(function);
}

absl::Status Encode(EncodeFunction encode, const MappedTensor& t, bool bf16, int box_rows,
                    CUtensorMap& map) {
  map = {};
  if (t.batch == 0 || t.heads == 0 || t.len == 0) return absl::OkStatus();
  cuuint64_t sizes[4] = {static_cast<cuuint64_t>(t.head_dim)};
  cuuint64_t strides_bytes[3];
  // An axis of one entry may have any stride in the tensor; here it needs a legal one.
  cuuint64_t legal_bytes = (t.head_dim * kElementBytes + 15) / 16 * 16;
  int axis = 0;
  for (const auto& [count, stride] : Axes(t)) {
    if (count > 1) legal_bytes = stride * kElementBytes;
    sizes[axis + 1] = count;
    strides_bytes[axis++] = legal_bytes;
  }
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const CUresult result =
      encode(&map, bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
             const_cast<void*>(t.data), sizes, strides_bytes, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("cuTensorMapEncodeTiled: error ",
                                                 static_cast<int>(result), " for [", t.batch, ", ",
                                                 t.heads, ", ", t.len, ", ", t.head_dim, "]"));
}

}  // namespace attnd::kernels::cuda::sm90a
