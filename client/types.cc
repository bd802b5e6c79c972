#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/client.h"

namespace attnd {

int64_t SizeBytes(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
  }
  return "?";
}

const char* TransportName(Transport transport) {
  switch (transport) {
    case Transport::kAuto:
      return "auto";
    case Transport::kUnary:
      return "unary";
    case Transport::kStream:
      return "stream";
    case Transport::kRegion:
      return "region";
  }
  return "?";
}

int64_t TensorView::size_bytes() const {
  int64_t bytes = SizeBytes(dtype);
  bool overflow = false;
  for (int64_t extent : shape) {
    if (extent <= 0) return 0;
    overflow = overflow || __builtin_mul_overflow(bytes, extent, &bytes);
  }
  return overflow ? std::numeric_limits<int64_t>::max() : bytes;
}

absl::StatusOr<RegionTensor> NewTensor(LocalRegion& region, DType dtype,
                                       std::vector<int64_t> shape) {
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("shape[", axis, "] is ", shape[axis], ", must be >= 0"));
  }
  RegionTensor tensor = {dtype, std::move(shape), nullptr, &region};
  const absl::StatusOr<unsigned char*> data = region.Allocate(tensor.input().size_bytes());
  if (!data.ok()) return data.status();
  tensor.data = *data;
  return tensor;
}

}  // namespace attnd
