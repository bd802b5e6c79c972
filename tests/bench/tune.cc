#include "tests/bench/tune.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/cases/table.h"
#include "tests/cases/values.h"

namespace attnd::bench {
namespace {

using kernels::AttentionProblem;
using kernels::AttentionTask;
using kernels::Backend;
using kernels::DType;

constexpr int64_t kModelWidth = 2048;  // heads * head_dim

// A quarter of a million numbers, over and over; no power of two, so that heads do not repeat in
// step.
constexpr int64_t kPatternRows = 2039;
constexpr int64_t kPatternWidth = 128;

double BoundOf(DType dtype) {
  return dtype == DType::kF32 ? 2e-6 : dtype == DType::kF16 ? 4.5e-4 : 3.5e-3;
}

// Q, K, V and O of a problem, dense. Drawing every number of a large case would take longer than
// timing it.
class TuneMemory {
 public:
  TuneMemory(const AttentionProblem& p, uint64_t seed) {
    const testing::Case drawn{
        .dtype = p.dtype, .lens = {{kPatternRows, kPatternRows}}, .head_dim = kPatternWidth};
    const testing::Values pattern =
        testing::DrawValues(testing::ProblemsOf(drawn)[0], testing::Distribution::kNormal, seed);
    const int64_t q_elems = p.batch * p.q_heads * p.q_len * p.head_dim;
    const int64_t kv_elems = p.batch * p.kv_heads * p.kv_len * p.head_dim;
    Repeat(pattern.q, p.dtype, q_elems, q_);
    Repeat(pattern.k, p.dtype, kv_elems, k_);
    Repeat(pattern.v, p.dtype, kv_elems, v_);
    o_.resize(static_cast<size_t>(q_elems * SizeBytes(p.dtype)));
    if (p.alibi) alibi_slopes_ = testing::AlibiSlopes(p.q_heads);
    task_.problem = p;
    task_.args.q = q_.data();
    task_.args.k = k_.data();
    task_.args.v = v_.data();
    task_.args.o = o_.data();
    task_.args.q_strides = task_.args.o_strides = kernels::BHSD(p.q_heads, p.q_len, p.head_dim);
    task_.args.k_strides = task_.args.v_strides = kernels::BHSD(p.kv_heads, p.kv_len, p.head_dim);
    task_.args.alibi_slopes = p.alibi ? alibi_slopes_.data() : nullptr;
  }
  TuneMemory(const TuneMemory&) = delete;
  TuneMemory& operator=(const TuneMemory&) = delete;

  const AttentionTask& task() const { return task_; }

 private:
  static void Repeat(const std::vector<float>& pattern, DType dtype, int64_t elems,
                     std::vector<unsigned char>& out) {
    const int64_t drawn = std::min<int64_t>(elems, static_cast<int64_t>(pattern.size()));
    out.resize(static_cast<size_t>(elems * SizeBytes(dtype)));
    for (int64_t i = 0; i < drawn; ++i) {
      kernels::StoreElement(out.data(), i, dtype, pattern[static_cast<size_t>(i)]);
    }
    const size_t drawn_bytes = static_cast<size_t>(drawn * SizeBytes(dtype));
    for (size_t at = drawn_bytes; at < out.size(); at += drawn_bytes) {
      std::memcpy(&out[at], out.data(), std::min(drawn_bytes, out.size() - at));
    }
  }

  std::vector<unsigned char> q_;
  std::vector<unsigned char> k_;
  std::vector<unsigned char> v_;
  std::vector<unsigned char> o_;
  std::vector<float> alibi_slopes_;
  AttentionTask task_;
};

// The first configuration of each kernel that there is for the problem.
std::vector<int> DifferentConfigurations(const AttentionProblem& problem,
                                         const Configurations& configurations) {
  std::set<std::string> seen;
  std::vector<int> different;
  for (size_t i = 0; i < configurations.size(); ++i) {
    if (!configurations[i]->Supports(problem).ok()) continue;
    if (seen.insert(configurations[i]->Plan(problem).kernel).second) {
      different.push_back(static_cast<int>(i));
    }
  }
  return different;
}

void MarkBest(std::vector<TuneRow>& rows) {
  TuneRow* best = nullptr;
  for (TuneRow& row : rows) {
    const double median_us = row.row.timing.median_us;
    if (row.is_right && (best == nullptr || median_us < best->row.timing.median_us)) best = &row;
  }
  if (best != nullptr) best->is_best = true;
}

}  // namespace

std::vector<testing::Case> TuneCases(const TuneShapes& shapes) {
  testing::CaseGroup group{.name = "tune"};
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (int64_t head_dim : {64, 96, 128, 192, 256}) {
      for (int64_t length : shapes.lengths) {
        testing::Case c{.dtype = dtype,
                        .batch = std::max<int64_t>(1, shapes.tokens / length),
                        .q_heads = kModelWidth / head_dim,
                        .kv_heads = kModelWidth / head_dim,
                        .lens = {{length, length}},
                        .head_dim = head_dim};
        for (const kernels::MaskSpec& mask :
             {testing::kFull, testing::kCausal,
              kernels::MaskSpec{.causal = {kernels::Causal::kBottomRight},
              .window = {length / 2, kernels::kUnbounded}}}) {
          c.mask = mask;
          testing::Add(group, c);
        }
      }
    }
  }
  return group.cases;
}

absl::StatusOr<Configurations> MakeConfigurations(const BackendMaker& make,
                                                  absl::Span<const testing::Case> cases) {
  Configurations configurations;
  std::set<std::string> seen;
  for (int number = 0; number <= kMaxConfigurations; ++number) {
    auto backend = make(number);
    if (!backend.ok()) return backend.status();
    bool brings_new = number == 0;
    for (const testing::Case& c : cases) {
      const AttentionProblem problem = testing::ProblemsOf(c)[0];
      if (!(*backend)->Supports(problem).ok()) continue;
      brings_new |= seen.insert((*backend)->Plan(problem).kernel).second;
    }
    if (!brings_new) return configurations;
    configurations.push_back(*std::move(backend));
  }
  return absl::InternalError(absl::StrCat("configuration ", kMaxConfigurations,
                                          " still plans with a new kernel; at most ",
                                          kMaxConfigurations, " are expected"));
}

absl::StatusOr<std::vector<TuneRow>> Tune(const testing::Case& c,
                                          const Configurations& configurations,
                                          const MeasureOptions& options) {
  const AttentionProblem problem = testing::ProblemsOf(c)[0];
  const std::vector<int> numbers = DifferentConfigurations(problem, configurations);
  if (numbers.empty()) return configurations.at(0)->Supports(problem);
  std::vector<Backend*> backends;
  for (int number : numbers) backends.push_back(configurations[static_cast<size_t>(number)].get());
  const TuneMemory memory(problem, options.seed);
  const auto timings = TimeTasks({memory.task()}, backends, options);
  if (!timings.ok()) return timings.status();
  std::vector<TuneRow> rows;
  for (size_t i = 0; i < backends.size(); ++i) {
    TuneRow row;
    row.plan = backends[i]->Plan(problem);
    row.configuration = numbers[i];
    row.row = {.case_name = c.name,
               .backend = std::string(backends[i]->Name()),
               .kernel = row.plan.kernel,
               .mask = testing::MaskName(problem),
               .shape = problem,
               .timing = (*timings)[i],
               .tflops = CountedFlops(problem) / (*timings)[i].median_us * 1e-6};
    row.is_right = row.row.timing.rel_error <= BoundOf(problem.dtype);
    rows.push_back(std::move(row));
  }
  MarkBest(rows);
  return rows;
}

}  // namespace attnd::bench
