#include "kernels/cuda/launch_list.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd::kernels::cuda {
namespace {

// Lengths and bands are 32-bit in the kernel, with room for sums of two.
constexpr int64_t kMaxLength = int64_t{1} << 30;

int ClampBand(int64_t bound) {
  return static_cast<int>(std::clamp(bound, -kMaxLength, kMaxLength - 1));
}

// K and V that a section's heads read: a part of the L2 cache (50 MB on an H100, 40 on an A100)
// that the tiles under way, of two sections at a time, leave to them.
constexpr int64_t kSectionBytes = int64_t{16} << 20;

int SectionHeads(const AttentionProblem& p) {
  const int64_t head_bytes = 2 * p.kv_len * p.head_dim * SizeBytes(p.dtype);
  const int64_t kv_heads = kSectionBytes / std::max<int64_t>(head_bytes, 1);
  const int64_t heads = std::min(std::max<int64_t>(kv_heads, 1) * p.group(), p.batch * p.q_heads);
  return static_cast<int>(std::clamp<int64_t>(heads, 1, kMaxLength - 1));
}

TensorDesc Describe(const Strides& strides) { return {strides.batch, strides.head, strides.row}; }

}  // namespace

absl::Status CheckLengths(const AttentionProblem& p) {
  for (const auto& [name, value] : {std::pair{"q_len", p.q_len}, std::pair{"kv_len", p.kv_len},
                                    std::pair{"batch", p.batch}, std::pair{"q_heads", p.q_heads}}) {
    if (value >= kMaxLength) {
      return absl::UnimplementedError(
          absl::StrCat(name, " is ", value, "; these kernels take less than ", kMaxLength));
    }
  }
  return absl::OkStatus();
}

bool Aligned16(const void* pointer, const Strides& strides, int64_t element_bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 &&
         strides.batch * element_bytes % 16 == 0 && strides.head * element_bytes % 16 == 0 &&
         strides.row * element_bytes % 16 == 0;
}

ProblemDesc Describe(const AttentionTask& task, int q_tile) {
  const AttentionProblem& p = task.problem;
  const AttentionArgs& a = task.args;
  const int64_t element_bytes = SizeBytes(p.dtype);
  const Band band = p.mask.Resolve(p.q_len, p.kv_len);
  ProblemDesc d = {};
  d.q = a.q;
  d.k = a.k;
  d.v = a.v;
  d.o = a.o;
  d.lse = a.lse;
  d.alibi_slopes = p.alibi ? a.alibi_slopes : nullptr;
  d.q_desc = Describe(a.q_strides);
  d.k_desc = Describe(a.k_strides);
  d.v_desc = Describe(a.v_strides);
  d.o_desc = Describe(a.o_strides);
  d.lse_batch_stride = a.lse_batch_stride;
  d.lse_head_stride = a.lse_head_stride;
  d.batch = static_cast<int>(p.batch);
  d.q_heads = static_cast<int>(p.q_heads);
  d.group = static_cast<int>(p.group());
  d.q_len = static_cast<int>(p.q_len);
  d.kv_len = static_cast<int>(p.kv_len);
  d.head_dim = static_cast<int>(p.head_dim);
  d.n_q_tiles = static_cast<int>((p.q_len + q_tile - 1) / q_tile);
  d.section_heads = SectionHeads(p);
  d.band_lo = ClampBand(band.lo);
  d.band_hi = ClampBand(band.hi);
  d.scale = p.scale;
  d.softcap = p.softcap;
  d.aligned =
      Aligned16(a.q, a.q_strides, element_bytes) && Aligned16(a.k, a.k_strides, element_bytes) &&
      Aligned16(a.v, a.v_strides, element_bytes) && Aligned16(a.o, a.o_strides, element_bytes);
  return d;
}

int64_t TileKeys(const ProblemDesc& d, int q_tile) {
  const int64_t width = int64_t{d.band_hi} - d.band_lo + q_tile;
  return std::min<int64_t>(d.kv_len, std::max<int64_t>(width, 0));
}

}  // namespace attnd::kernels::cuda
