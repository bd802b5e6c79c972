#include "tests/cases/table.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd::testing {
namespace {

std::string LensName(const Case& c) {
  if (c.layout == Layout::kTHD) return absl::StrCat("packed", c.lens.size());
  return absl::StrCat("q", c.lens[0].q, "_kv", c.lens[0].kv);
}

std::string NameOf(const std::string& group, const Case& c) {
  std::string name =
      absl::StrCat(group, "/", DTypeName(c.dtype), "_d", c.head_dim, "_h", c.q_heads, "x",
                   c.kv_heads, "_", LensName(c), "_", MaskName(ProblemsOf(c)[0]));
  if (c.batch != 1) absl::StrAppend(&name, "_b", c.batch);
  if (c.layout == Layout::kBSHD) absl::StrAppend(&name, "_bshd");
  if (c.scale > 0) absl::StrAppend(&name, "_scale", c.scale);
  if (c.distribution != Distribution::kNormal) {
    absl::StrAppend(&name, "_", DistributionName(c.distribution));
  }
  return name;
}

}  // namespace

void Add(CaseGroup& group, Case c) {
  c.name = NameOf(group.name, c);
  group.cases.push_back(std::move(c));
}

const std::vector<CaseGroup>& CaseGroups() {
  static const auto* const groups = [] {
    auto* all = new std::vector<CaseGroup>;
    for (auto part : {ShapeGroups(), MaskGroups(), NumberGroups(), BenchGroups()}) {
      all->insert(all->end(), part.begin(), part.end());
    }
    return all;
  }();
  return *groups;
}

std::vector<Case> TileEdgeCases(kernels::DType dtype, const kernels::MaskSpec& mask,
                                int64_t head_dim, int64_t q_tile, int64_t kv_tile) {
  CaseGroup group{.name = "tile_edges"};
  const auto add = [&](int64_t q_len, int64_t kv_len) {
    Add(group, {.dtype = dtype, .lens = {{q_len, kv_len}}, .head_dim = head_dim, .mask = mask});
  };
  for (int64_t tiles : {1, 2}) {
    for (int64_t off : {-1, 0, 1}) {
      if (const int64_t q_len = tiles * q_tile + off; q_len > 0) add(q_len, kv_tile + 3);
      if (const int64_t kv_len = tiles * kv_tile + off; kv_len > 0) add(q_tile + 3, kv_len);
    }
  }
  return group.cases;
}

}  // namespace attnd::testing
