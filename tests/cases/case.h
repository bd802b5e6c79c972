// One case: a problem (or a packed batch of them), the layout of its tensors, and what numbers are
// in it. Cases are data; memory.h lays one out, table.h lists them.
#ifndef ATTND_TESTS_CASES_CASE_H_
#define ATTND_TESTS_CASES_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention.h"

namespace attnd::testing {

// As in proto/attnd/v1/attnd.proto: dense [batch, heads, len, head_dim], dense [batch, len, heads,
// head_dim], or packed [total_tokens, heads, head_dim].
enum class Layout { kBHSD, kBSHD, kTHD };

// Where the numbers of Q, K and V come from. z is N(0,1), drawn anew for every element.
enum class Distribution {
  kNormal,        // z: what the error bounds of the design are stated for
  kLarge,         // q, k = 4 z, v = 100 z: softmax puts nearly all weight on one key
  kTiny,          // all 1e-3 z: softmax is nearly uniform; fp16 outputs become subnormal
  kConstant,      // all 0.75: every weight is the same
  kOffset,        // v = 30 + z: nothing cancels
  kSink,          // key 0 is 6 times as long as the others: as transformers' first token
  kFarBelowZero,  // q = 4 + z/8, k = -4 + z/8: every score is far below 0
};
const char* DistributionName(Distribution distribution);

struct Lens {
  int64_t q = 0;
  int64_t kv = 0;
};

struct Case {
  std::string name = {};
  kernels::DType dtype = kernels::DType::kF32;
  Layout layout = Layout::kBHSD;
  int64_t batch = 1;  // kTHD: lens.size()
  int64_t q_heads = 1;
  int64_t kv_heads = 1;
  std::vector<Lens> lens = {};  // kTHD: one a sequence; otherwise one
  int64_t head_dim = 64;
  kernels::MaskSpec mask = {};
  float softcap = 0;
  bool alibi = false;
  float scale = 0;  // 0: the default, 1 / sqrt(head_dim)
  Distribution distribution = Distribution::kNormal;
};

// What a backend gets for this case: one problem, or for kTHD one a sequence, with batch 1.
std::vector<kernels::AttentionProblem> ProblemsOf(const Case& c);

// "full", "causal" (bottom-right), "causal_top_left", "window_64_0" ("-": no bound), "softcap_30",
// "alibi", joined by "+".
std::string MaskName(const kernels::AttentionProblem& problem);

// As ALiBi has them, falling with the head: 2^(-8 (h + 1) / q_heads), times a
// factor that bf16 cannot hold.
std::vector<float> AlibiSlopes(int64_t q_heads);

}  // namespace attnd::testing

#endif  // ATTND_TESTS_CASES_CASE_H_
