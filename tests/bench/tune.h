// Choosing among the configurations (tile sizes, stages) that a backend has compiled of a kernel:
// times all of them, by launch key and length.
#ifndef ATTND_TESTS_BENCH_TUNE_H_
#define ATTND_TESTS_BENCH_TUNE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "tests/bench/measure.h"
#include "tests/cases/case.h"

namespace attnd::bench {

struct TuneShapes {
  std::vector<int64_t> lengths = {512, 2048, 8192};  // of queries and keys; each > 0
  int64_t tokens = 16384;  // a call: the batch is as many sequences of a length as that holds, or 1
};

// "tune/...": fp16 and bf16, head_dim 64, 96, 128, 192, 256, as many heads as 2048 / head_dim
// holds, full, causal, and causal with a window of half the length, which is of the general family.
std::vector<testing::Case> TuneCases(const TuneShapes& shapes);

// A backend whose every launch key uses its configuration of that number, from 0 on; keys that have
// fewer use any of theirs.
using BackendMaker =
    std::function<absl::StatusOr<std::unique_ptr<kernels::Backend>>(int configuration)>;
using Configurations = std::vector<std::unique_ptr<kernels::Backend>>;

// More than any backend has: one that brings new kernels for ever is an error.
inline constexpr int kMaxConfigurations = 16;

// Backends 0, 1, 2, ... up to the first that plans none of the cases with a kernel that is new. Of
// a backend with one configuration: one. At least one. An error is the maker's own.
absl::StatusOr<Configurations> MakeConfigurations(const BackendMaker& make,
                                                  absl::Span<const testing::Case> cases);

struct TuneRow {
  Row row;
  kernels::KernelPlan plan;
  int configuration = 0;
  bool is_right = false;  // within the bound that N(0,1) inputs have: fp16 4.5e-4, bf16 3.5e-3
  bool is_best = false;   // the fastest right one of its case
};

// Times each kernel that the configurations have for the case (THD is not taken), side by side, and
// marks the best. Numbers are N(0,1), a quarter of a million
// over and over. A row a kernel, in the order
// of their configurations.
absl::StatusOr<std::vector<TuneRow>> Tune(const testing::Case& c,
                                          const Configurations& configurations,
                                          const MeasureOptions& options);

// One line a row, the best marked by "*", what computed wrongly by "WRONG"; a header first.
std::string ToTable(const std::vector<TuneRow>& rows);

// The choice as kernels/cuda/sm90a/config.h lists it: head_dim, family, the first length of keys
// that it is for, warpgroups of 64 query rows, keys a tile. Behind each line the lengths at which
// it was best, and by how much. Dtypes have one choice: the smallest geometric mean of times.
// Stages stay the words kStages and kQStages: they are the configuration's own, and no plan tells
// them.
std::string ToConfigLines(const std::vector<TuneRow>& rows);

// A JSON array: ToObject's keys without peak_rss_mb, and configuration, family, q_tile, kv_tile,
// is_right, is_best.
std::string ToJson(const std::vector<TuneRow>& rows);

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_TUNE_H_
