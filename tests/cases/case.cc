#include "tests/cases/case.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace attnd::testing {

using kernels::AttentionProblem;
using kernels::Causal;

const char* DistributionName(Distribution distribution) {
  switch (distribution) {
    case Distribution::kNormal:
      return "normal";
    case Distribution::kLarge:
      return "large";
    case Distribution::kTiny:
      return "tiny";
    case Distribution::kConstant:
      return "constant";
    case Distribution::kOffset:
      return "offset";
    case Distribution::kSink:
      return "sink";
    case Distribution::kFarBelowZero:
      return "far_below_zero";
  }
  return "?";
}

std::vector<AttentionProblem> ProblemsOf(const Case& c) {
  std::vector<AttentionProblem> problems;
  for (const Lens& lens : c.lens) {
    problems.push_back({.dtype = c.dtype,
                        .batch = c.layout == Layout::kTHD ? 1 : c.batch,
                        .q_heads = c.q_heads,
                        .kv_heads = c.kv_heads,
                        .q_len = lens.q,
                        .kv_len = lens.kv,
                        .head_dim = c.head_dim,
                        .mask = c.mask,
                        .scale = c.scale > 0 ? c.scale : kernels::DefaultScale(c.head_dim),
                        .softcap = c.softcap,
                        .alibi = c.alibi});
  }
  return problems;
}

std::string MaskName(const AttentionProblem& problem) {
  std::vector<std::string> parts;
  if (problem.mask.causal.alignment == Causal::kBottomRight) parts.push_back("causal");
  if (problem.mask.causal.alignment == Causal::kTopLeft) parts.push_back("causal_top_left");
  const kernels::WindowMask& window = problem.mask.window;
  if (window.active()) {
    const auto side = [](int64_t bound) {
      return bound >= kernels::kUnbounded ? std::string("-") : absl::StrCat(bound);
    };
    parts.push_back(absl::StrCat("window_", side(window.left), "_", side(window.right)));
  }
  if (problem.softcap > 0) parts.push_back(absl::StrCat("softcap_", problem.softcap));
  if (problem.alibi) parts.push_back("alibi");
  return parts.empty() ? "full" : absl::StrJoin(parts, "+");
}

std::vector<float> AlibiSlopes(int64_t q_heads) {
  std::vector<float> slopes;
  for (int64_t head = 0; head < q_heads; ++head) {
    slopes.push_back(1.0123f *
                     std::exp2(-8.0f * static_cast<float>(head + 1) / static_cast<float>(q_heads)));
  }
  return slopes;
}

}  // namespace attnd::testing
