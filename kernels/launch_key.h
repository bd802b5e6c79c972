// What may share a launch: problems of one key run the same kernel and may differ in everything
// else.
#ifndef ATTND_KERNELS_LAUNCH_KEY_H_
#define ATTND_KERNELS_LAUNCH_KEY_H_

#include <compare>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "kernels/attention.h"

namespace attnd::kernels {

// full: every row sees every key. causal: one causal mask and nothing else. general: the rest.
enum class Family : uint8_t { kFull, kCausal, kGeneral };
// decode: one query row, bound by reading K/V. A row's role follows from its own q_len alone.
enum class Role : uint8_t { kPrefill, kDecode };

struct LaunchKey {
  DType dtype = DType::kF32;
  int head_dim_class = 0;
  Family family = Family::kFull;
  Role role = Role::kPrefill;
  friend auto operator<=>(const LaunchKey&, const LaunchKey&) = default;
};

// The smallest of 64, 96, 128, 192, 256 that holds head_dim (1..kMaxHeadDim).
int HeadDimClass(int64_t head_dim);

const char* FamilyName(Family family);

LaunchKey KeyOf(const AttentionProblem& problem);

// attn_fwd_<dtype>_d<head_dim class>_<family>_<arch>: the kernel's symbol, test, bench row and
// metric label.
std::string KernelName(const LaunchKey& key, absl::string_view arch);

}  // namespace attnd::kernels

#endif  // ATTND_KERNELS_LAUNCH_KEY_H_
