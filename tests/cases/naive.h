// Attention once more, apart from the library: formulas of proto/attnd/v1/attnd.proto written down
// key by key, with a mask of its own. It checks the reference, and emulates the roundings that a
// half-precision kernel cannot avoid.
#ifndef ATTND_TESTS_CASES_NAIVE_H_
#define ATTND_TESTS_CASES_NAIVE_H_

#include <cstdint>
#include <vector>

#include "kernels/attention.h"

namespace attnd::testing {

enum class Rounding {
  kNone,
  // The unnormalised weights P and the output O are rounded to the problem's dtype, nothing else:
  // what a kernel with half-precision inputs to its second matrix product gives at best.
  kWeightsAndOutput,
};

struct NaiveResult {
  std::vector<double> o;     // dense [batch, q_heads, q_len, head_dim]
  std::vector<double> lse;   // dense [batch, q_heads, q_len]
  double max_abs_score = 0;  // over visible pairs, after softcap and ALiBi
};

NaiveResult NaiveAttention(const kernels::AttentionProblem& problem,
                           const kernels::AttentionArgs& args, Rounding rounding);

}  // namespace attnd::testing

#endif  // ATTND_TESTS_CASES_NAIVE_H_
