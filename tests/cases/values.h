// Numbers for tensors: reproducible from a seed on every compiler and machine.
#ifndef ATTND_TESTS_CASES_VALUES_H_
#define ATTND_TESTS_CASES_VALUES_H_

#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "tests/cases/case.h"

namespace attnd::testing {

// splitmix64: a counter through a mixing function.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}

  uint64_t Next();
  // [0, bound), bound > 0.
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(Next() % static_cast<uint64_t>(bound));
  }

 private:
  uint64_t state_;
};

// The logical values of one problem, dense [batch, heads, len, head_dim], whatever the layout in
// memory: the same seed gives the same values in every layout. Not rounded to the dtype.
struct Values {
  std::vector<float> q;
  std::vector<float> k;
  std::vector<float> v;
};
Values DrawValues(const kernels::AttentionProblem& problem, Distribution distribution,
                  uint64_t seed);

}  // namespace attnd::testing

#endif  // ATTND_TESTS_CASES_VALUES_H_
