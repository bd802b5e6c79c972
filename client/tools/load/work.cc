#include "client/tools/load/work.h"

#include <algorithm>
#include <utility>

#include "kernels/dtype.h"

namespace attnd::tools {
namespace {

// Elements from one variant to the next: a row or more for most shapes, and 128 bytes or more, so
// that every variant is aligned alike.
constexpr int64_t kVariantStep = 64;

kernels::DType ToKernels(DType dtype) {
  return dtype == DType::kFloat32   ? kernels::DType::kF32
         : dtype == DType::kFloat16 ? kernels::DType::kF16
                                    : kernels::DType::kBF16;
}

std::vector<unsigned char> RandomElements(DType dtype, int64_t elems, std::mt19937_64& random) {
  std::vector<unsigned char> bytes(elems * SizeBytes(dtype));
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < elems; ++i) {
    kernels::StoreElement(bytes.data(), i, ToKernels(dtype), normal(random));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Work>> Work::Create(std::vector<CallKind> kinds, Transport transport,
                                                   int64_t seed) {
  for (const CallKind& kind : kinds) {
    if (absl::Status status = CheckSizes(kind); !status.ok()) return status;
  }
  return std::unique_ptr<Work>(new Work(std::move(kinds), transport, seed));
}

Work::Work(std::vector<CallKind> kinds, Transport transport, int64_t seed)
    : kinds_(std::move(kinds)), transport_(transport) {
  std::map<DType, std::array<int64_t, 2>> most;  // bytes of the largest Q, and of the largest K
  double sum = 0;
  for (const CallKind& kind : kinds_) {
    weight_ends_.push_back(sum += kind.weight);
    std::array<int64_t, 2>& bytes = most[kind.dtype];
    bytes[0] = std::max(bytes[0], TensorView{kind.dtype, kind.q_shape(), nullptr}.size_bytes());
    bytes[1] = std::max(bytes[1], TensorView{kind.dtype, kind.kv_shape(), nullptr}.size_bytes());
  }
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  for (const auto& [dtype, bytes] : most) {
    for (size_t operand = 0; operand < 3; ++operand) {
      const int64_t elems = bytes[operand > 0] / SizeBytes(dtype) + kVariants * kVariantStep;
      pools_[dtype][operand] = RandomElements(dtype, elems, random);
    }
  }
}

size_t Work::Pick(std::mt19937_64& random) const {
  if (kinds_.size() == 1) return 0;
  std::uniform_real_distribution<double> share(0, weight_ends_.back());
  const auto found = std::upper_bound(weight_ends_.begin(), weight_ends_.end(), share(random));
  return std::min<size_t>(found - weight_ends_.begin(), kinds_.size() - 1);
}

TensorView Work::View(const CallKind& kind, size_t operand, size_t variant) const {
  const int64_t offset_elems = static_cast<int64_t>(variant % kVariants) * kVariantStep;
  return {kind.dtype, operand == 0 ? kind.q_shape() : kind.kv_shape(),
          pools_.at(kind.dtype)[operand].data() + offset_elems * SizeBytes(kind.dtype)};
}

AttentionRequest Work::Request(size_t kind_index, size_t variant) const {
  const CallKind& kind = kinds_[kind_index];
  AttentionRequest request;
  request.q = View(kind, 0, variant);
  request.k = View(kind, 1, variant);
  request.v = View(kind, 2, variant);
  request.causal = kind.causal;
  request.window_left = kind.window_left;
  request.window_right = kind.window_right;
  request.priority = static_cast<int>(kind.priority);
  request.timeout = kind.timeout;
  request.transport = transport_;
  return request;
}

}  // namespace attnd::tools
