#include "kernels/attention.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace attnd::kernels {
namespace {

const char* CausalName(Causal alignment) {
  switch (alignment) {
    case Causal::kNone:
      return "none";
    case Causal::kTopLeft:
      return "top_left";
    case Causal::kBottomRight:
      return "bottom_right";
  }
  return "?";
}

std::string BoundName(int64_t bound) { return bound >= kUnbounded ? "-" : absl::StrCat(bound); }

// True if the product of these extents overflows int64 or kUnbounded.
bool TooLarge(std::initializer_list<int64_t> extents) {
  int64_t product = 1;
  for (int64_t extent : extents) {
    if (extent == 0) return false;
    if (__builtin_mul_overflow(product, extent, &product)) return true;
  }
  return product >= kUnbounded;
}

absl::Status CheckExtents(const AttentionProblem& p) {
  const struct {
    const char* name;
    int64_t value;
  } extents[] = {{"batch", p.batch}, {"q_heads", p.q_heads}, {"kv_heads", p.kv_heads},
                 {"q_len", p.q_len}, {"kv_len", p.kv_len},   {"head_dim", p.head_dim}};
  for (const auto& extent : extents) {
    if (extent.value < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(extent.name, " is ", extent.value, "; it must be at least 0"));
    }
  }
  if (p.head_dim < 1 || p.head_dim > kMaxHeadDim) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim is ", p.head_dim, "; it must be in 1..", kMaxHeadDim));
  }
  if (p.kv_heads == 0 ? p.q_heads != 0 : p.q_heads % p.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "q_heads is ", p.q_heads, "; it must be a multiple of kv_heads, which is ", p.kv_heads));
  }
  if (TooLarge({p.batch, p.q_heads, p.q_len, p.head_dim}) ||
      TooLarge({p.batch, p.kv_heads, p.kv_len, p.head_dim}) || TooLarge({p.q_len, p.kv_len})) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the extents' product overflows: batch ", p.batch, ", q_heads ", p.q_heads, ", kv_heads ",
        p.kv_heads, ", q_len ", p.q_len, ", kv_len ", p.kv_len, ", head_dim ", p.head_dim));
  }
  return absl::OkStatus();
}

}  // namespace

std::string ToString(const AttentionProblem& p) {
  return absl::StrCat(
      DTypeName(p.dtype), " b", p.batch, " hq", p.q_heads, " hkv", p.kv_heads, " q", p.q_len, " kv",
      p.kv_len, " d", p.head_dim, " causal=", CausalName(p.mask.causal.alignment),
      " window=", BoundName(p.mask.window.left), ",", BoundName(p.mask.window.right),
      " softcap=", p.softcap, " alibi=", p.alibi ? 1 : 0, " scale=", p.scale);
}

float DefaultScale(int64_t head_dim) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

absl::Status Validate(const AttentionProblem& p) {
  if (absl::Status status = CheckExtents(p); !status.ok()) return status;
  if (!std::isfinite(p.scale) || p.scale <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("scale is ", p.scale, "; it must be finite and greater than 0"));
  }
  if (!std::isfinite(p.softcap) || p.softcap < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("softcap is ", p.softcap, "; it must be finite and at least 0"));
  }
  if (p.mask.window.left < 0 || p.mask.window.right < 0) {
    const bool is_left = p.mask.window.left < 0;
    return absl::InvalidArgumentError(
        absl::StrCat("window.", is_left ? "left" : "right", " is ",
                     is_left ? p.mask.window.left : p.mask.window.right,
                     "; it must be at least 0, or absent for no bound"));
  }
  return absl::OkStatus();
}

double Flops(const AttentionProblem& p) { return Flops(p, 0, p.q_len); }

double Flops(const AttentionProblem& p, int64_t q_begin, int64_t q_end) {
  if (p.empty()) return 0;
  const Band band = p.mask.Resolve(p.q_len, p.kv_len);
  double pairs = 0;
  for (int64_t row = q_begin; row < std::min(q_end, p.q_len); ++row) {
    pairs += static_cast<double>(band.RowKeys(row, p.kv_len).size());
  }
  return 4.0 * static_cast<double>(p.batch) * static_cast<double>(p.q_heads) *
         static_cast<double>(p.head_dim) * pairs;
}

}  // namespace attnd::kernels
