// Comparing a backend with fp64, for the suites of this folder.
#ifndef ATTND_TESTS_KERNELS_CHECK_H_
#define ATTND_TESTS_KERNELS_CHECK_H_

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "tests/cases/case.h"
#include "tests/cases/memory.h"

namespace attnd::testing {

// What fp64 says about one problem, and how far a backend may be from it.
struct Expected {
  std::vector<double> o;    // dense [batch, q_heads, q_len, head_dim]
  std::vector<double> lse;  // dense [batch, q_heads, q_len]
  double o_bound = 0;       // relative, in norm
};

// One a problem of the case. Computed once for a case, seed and edge poison.
const std::vector<Expected>& ExpectedOf(const Case& c, const MemoryOptions& options,
                                        const CaseMemory& memory);

// How far an LSE may be from fp64, absolute. A score is a sum of up to 256 products in fp32, whose
// error is a few times 2^-24 of the score's magnitude; exp and log add a few 2^-24 more. That is
// below 2e-6 of the LSE, which is never far below the largest score; five times that is the bound.
double LseBound(double expected_lse);

// Compares O and LSE with what is expected, adding test failures. A row without keys must be 0 and
// -inf exactly.
void CheckNumbers(const Expected& expected, const kernels::AttentionProblem& problem,
                  const std::vector<double>& o, const std::vector<double>& lse);

// Lays the case out, runs it, checks numbers and every byte around them.
void CheckCase(kernels::Backend& backend, const Case& c, const MemoryOptions& options);

// As gtest wants parameter names: letters, digits and '_'.
std::string TestName(const std::string& name);

}  // namespace attnd::testing

#endif  // ATTND_TESTS_KERNELS_CHECK_H_
