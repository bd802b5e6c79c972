#include "kernels/launch_key.h"

#include "absl/strings/str_cat.h"

namespace attnd::kernels {

int HeadDimClass(int64_t head_dim) {
  for (int head_dim_class : {64, 96, 128, 192}) {
    if (head_dim <= head_dim_class) return head_dim_class;
  }
  return kMaxHeadDim;
}

const char* FamilyName(Family family) {
  switch (family) {
    case Family::kFull:
      return "full";
    case Family::kCausal:
      return "causal";
    case Family::kGeneral:
      return "general";
  }
  return "?";
}

LaunchKey KeyOf(const AttentionProblem& problem) {
  LaunchKey key;
  key.dtype = problem.dtype;
  key.head_dim_class = HeadDimClass(problem.head_dim);
  key.role = problem.q_len == 1 ? Role::kDecode : Role::kPrefill;
  if (problem.mask.window.active() || problem.softcap > 0 || problem.alibi) {
    key.family = Family::kGeneral;
  } else if (problem.mask.causal.alignment != Causal::kNone) {
    key.family = Family::kCausal;
  }
  return key;
}

std::string KernelName(const LaunchKey& key, absl::string_view arch) {
  return absl::StrCat("attn_fwd_", DTypeName(key.dtype), "_d", key.head_dim_class, "_",
                      FamilyName(key.family), "_", arch);
}

}  // namespace attnd::kernels
