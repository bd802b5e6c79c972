// What the processors could do at most, measured beside the kernels: loops that do nothing but
// multiply in registers, or read memory.
#ifndef ATTND_TESTS_BENCH_CEILING_H_
#define ATTND_TESTS_BENCH_CEILING_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace attnd::bench {

struct Ceiling {
  std::string name;  // "amx_bf16", "avx512_bf16", "avx512_f32", "avx2_f32", "read"
  std::string unit;  // "tflops" (1e12 operations a second) or "gb_per_s" (1e9 bytes a second)
  double value = 0;  // of all threads together; median over the rounds
};

// Those that this machine can run, on `threads` threads > 0, each round at least `min_time_ms` a
// loop. "read" takes 512 MiB of memory while it runs; RESOURCE_EXHAUSTED where there is none.
absl::StatusOr<std::vector<Ceiling>> MeasureCeilings(int threads, int rounds, int min_time_ms);

// "ceiling  amx_bf16  2.71 tflops" and so on, a line each.
std::string ToText(const std::vector<Ceiling>& ceilings);

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_CEILING_H_
