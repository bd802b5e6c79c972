#include "kernels/cuda/launch_list.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd::kernels::cuda {
namespace {

// Lengths and bands are 32-bit in the kernel, with room for sums of two.
constexpr int64_t kMaxLength = int64_t{1} << 30;
// A problem's items are numbered in 32 bits. No kernel's query tile has fewer rows.
constexpr int64_t kSmallestQTile = 64;
constexpr int64_t kMaxItems = (int64_t{1} << 31) - 1;

int ClampBand(int64_t bound) {
  return static_cast<int>(std::clamp(bound, -kMaxLength, kMaxLength - 1));
}

// K and V that a section's heads read: a part of the L2 cache (50 MB on an H100, 40 on an A100)
// that the tiles under way, of two sections at a time, leave to them. As measured on an H200.
constexpr int64_t kSectionBytes = int64_t{16} << 20;
// The last section has some six items for each multiprocessor, so that the last ones end together,
// if tiles differ much, and if K and V are not read too often for it.
constexpr int64_t kLastSectionItems = 800;
constexpr int64_t kLastSectionBytes = int64_t{48} << 20;
constexpr int kManyTiles = 8;
// So few heads are under way all at once in any order.
constexpr int64_t kFewHeads = 4;

struct Sections {
  int64_t heads;
  int64_t small;
};

Sections SectionsOf(const AttentionProblem& p, int n_q_tiles) {
  const int64_t all = p.batch * p.q_heads;
  const int64_t head_bytes = std::max<int64_t>(2 * p.kv_len * p.head_dim * SizeBytes(p.dtype), 1);
  if (kSectionBytes / head_bytes <= kFewHeads) return {all, 0};
  const auto heads_of = [&](int64_t bytes) {
    return std::min(bytes / head_bytes * p.group(), all);
  };
  const int64_t section = heads_of(kSectionBytes);
  int64_t last = section;
  if (n_q_tiles >= kManyTiles) {
    last = std::clamp((kLastSectionItems + n_q_tiles - 1) / n_q_tiles, section,
                      heads_of(kLastSectionBytes));
  }
  return {section, (all - std::min(last, all)) / std::max<int64_t>(section, 1)};
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
  const int64_t tiles = (p.q_len + kSmallestQTile - 1) / kSmallestQTile;
  if (tiles > 0 && p.batch * p.q_heads > kMaxItems / tiles) {
    return absl::UnimplementedError(absl::StrCat("batch ", p.batch, " with q_heads ", p.q_heads,
                                                 " and q_len ", p.q_len, " has more than ",
                                                 kMaxItems, " tiles of ", kSmallestQTile, " rows"));
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
  const Sections sections = SectionsOf(p, d.n_q_tiles);
  d.section_heads = static_cast<int>(sections.heads);
  d.small_sections = static_cast<int>(sections.small);
  d.band_lo = ClampBand(band.lo);
  d.band_hi = ClampBand(band.hi);
  d.scale = p.softcap > 0 ? p.scale / p.softcap : p.scale;
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
