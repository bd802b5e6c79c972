// Timing one case on several backends, and checking what they computed.
#ifndef ATTND_TESTS_BENCH_MEASURE_H_
#define ATTND_TESTS_BENCH_MEASURE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "tests/cases/case.h"

namespace attnd::bench {

struct MeasureOptions {
  int rounds = 5;        // > 0
  int min_time_ms = 10;  // of one round; a short problem is run many times in it
  uint64_t seed = 1;     // of the numbers in the tensors
  // Rows of a problem that are checked against fp64: seconds of fp64 at length 16384, and enough
  // numbers for a norm.
  int64_t checked_rows = 48;
};

// The same tasks on one backend.
struct Timing {
  double median_us = 0;    // of one Run, over the rounds; on a GPU by events on the stream
  double rel_error = 0;    // O against fp64, in norm, over the checked rows
  double peak_rss_mb = 0;  // of this process while the backend ran, 2^20 bytes, tensors included
};

// One case on one backend. q_len and kv_len of a packed case are those of its longest sequences.
struct Row {
  std::string case_name;
  std::string backend;
  std::string kernel;
  std::string mask;
  kernels::AttentionProblem shape;
  Timing timing;
  double tflops = 0;  // 1e12 floating-point operations a second, counted by CountedFlops
};

// 4 * batch * q_heads * q_len * kv_len * head_dim, halved for causal; with a window, which leaves
// less than that, only the pairs that are visible.
double CountedFlops(const kernels::AttentionProblem& problem);

// Times the tasks, whose memory is the host's, on all backends in the same run: each plans them
// anew and has one untimed run, whose rows are checked against fp64, then the rounds alternate
// between them. A backend that has spent two seconds gets no further round. An error is a backend's
// own.
absl::StatusOr<std::vector<Timing>> TimeTasks(absl::Span<const kernels::AttentionTask> tasks,
                                              absl::Span<kernels::Backend* const> backends,
                                              const MeasureOptions& options);

// Draws the case's numbers and times it by TimeTasks.
absl::StatusOr<std::vector<Row>> Measure(
    const testing::Case& c, const std::vector<std::unique_ptr<kernels::Backend>>& backends,
    const MeasureOptions& options);

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_MEASURE_H_
