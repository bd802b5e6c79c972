#include "tests/bench/measure.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "kernels/reference/reference.h"
#include "tests/bench/device_tasks.h"
#include "tests/bench/peak_rss.h"
#include "tests/cases/memory.h"
#include "tests/cases/run.h"

namespace attnd::bench {
namespace {

using kernels::AttentionArgs;
using kernels::AttentionProblem;
using kernels::AttentionTask;
using kernels::Backend;
using kernels::RowId;
using testing::CaseMemory;
using Clock = std::chrono::steady_clock;

constexpr double kMaxBackendUs = 2e6;

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Evenly spread over batch, heads and rows, the first and the last among them, in memory order.
std::vector<RowId> SampleRows(const AttentionProblem& p, int64_t most) {
  const int64_t rows = p.batch * p.q_heads * p.q_len;
  const int64_t count = std::min(rows, most);
  std::vector<RowId> sample;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = count > 1 ? i * (rows - 1) / (count - 1) : 0;
    const int64_t head = index / p.q_len;
    sample.push_back({head / p.q_heads, head % p.q_heads, index % p.q_len});
  }
  return sample;
}

// The sampled rows of all tasks, in fp64, and as a backend left them in memory.
class Checker {
 public:
  Checker(absl::Span<const AttentionTask> tasks, int64_t rows_per_task) : tasks_(tasks) {
    for (const AttentionTask& task : tasks) {
      samples_.push_back(SampleRows(task.problem, rows_per_task));
      std::vector<double> o(samples_.back().size() * task.problem.head_dim);
      ReferenceRows(task.problem, task.args, samples_.back(), o.data(), nullptr);
      expected_.insert(expected_.end(), o.begin(), o.end());
    }
  }

  // A row that the next backend leaves alone is not taken for its answer.
  void Poison() const {
    ForEachElement([](const AttentionTask& task, int64_t element) {
      kernels::StoreElement(task.args.o, element, task.problem.dtype,
                            std::numeric_limits<float>::quiet_NaN());
    });
  }

  double RelError() const {
    std::vector<double> actual;
    ForEachElement([&actual](const AttentionTask& task, int64_t element) {
      actual.push_back(kernels::LoadElement(task.args.o, element, task.problem.dtype));
    });
    return kernels::RelativeError(actual, expected_);
  }

 private:
  template <typename Function>
  void ForEachElement(Function function) const {
    for (size_t i = 0; i < tasks_.size(); ++i) {
      const kernels::Strides& strides = tasks_[i].args.o_strides;
      for (const RowId& id : samples_[i]) {
        const int64_t first =
            id.batch * strides.batch + id.q_head * strides.head + id.row * strides.row;
        for (int64_t d = 0; d < tasks_[i].problem.head_dim; ++d) function(tasks_[i], first + d);
      }
    }
  }

  const absl::Span<const AttentionTask> tasks_;
  std::vector<std::vector<RowId>> samples_;
  std::vector<double> expected_;
};

// A backend with everything that it needs to run the case again and again.
struct Contender {
  Backend& backend;
  std::vector<AttentionTask> tasks;
  std::unique_ptr<testing::Workspace> workspace;  // on a CPU
  std::unique_ptr<DeviceTasks> device;            // on a GPU
  std::vector<double> rounds_us;
  double spent_us = 0;

  // The first run, for the answer.
  absl::Status Prepare() {
    if (testing::MemoryOf(backend) == kernels::MemoryKind::kHost) {
      if (absl::Status status = testing::RunTasks(backend, tasks); !status.ok()) return status;
      workspace = std::make_unique<testing::Workspace>(backend, tasks);
      return absl::OkStatus();
    }
    auto copied = CopyToDevice(backend, tasks);
    if (!copied.ok()) return copied.status();
    device = *std::move(copied);
    if (absl::Status status = device->RunUs(1).status(); !status.ok()) return status;
    return device->CopyOutputs();
  }

  absl::StatusOr<double> RunUs(int64_t runs) {
    if (device != nullptr) return device->RunUs(runs);
    const auto start = Clock::now();
    for (int64_t i = 0; i < runs; ++i) {
      absl::Status status = backend.Run(tasks, workspace->data(), nullptr);
      if (!status.ok()) return status;
    }
    return MicrosecondsSince(start);
  }

  // More and more runs at once, so that a GPU is not waited for after each.
  absl::Status RunRound(int min_time_ms) {
    int64_t runs = 0;
    double elapsed_us = 0;
    do {
      const int64_t more = std::max<int64_t>(1, runs);
      const absl::StatusOr<double> took_us = RunUs(more);
      if (!took_us.ok()) return took_us.status();
      runs += more;
      elapsed_us += *took_us;
    } while (elapsed_us < min_time_ms * 1e3);
    spent_us += elapsed_us;
    rounds_us.push_back(elapsed_us / static_cast<double>(runs));
    return absl::OkStatus();
  }
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

absl::StatusOr<std::vector<AttentionTask>> PlannedBy(const Backend& backend,
                                                     absl::Span<const AttentionTask> tasks) {
  std::vector<AttentionTask> planned(tasks.begin(), tasks.end());
  for (AttentionTask& task : planned) {
    if (absl::Status status = backend.Supports(task.problem); !status.ok()) return status;
    task.plan = backend.Plan(task.problem);
  }
  return planned;
}

Row Describe(const testing::Case& c, const Backend& backend, const CaseMemory& memory) {
  Row row;
  row.case_name = c.name;
  row.backend = std::string(backend.Name());
  row.shape = memory.problems()[0];
  row.shape.batch =
      c.layout == testing::Layout::kTHD ? static_cast<int64_t>(c.lens.size()) : c.batch;
  for (const AttentionProblem& p : memory.problems()) {
    row.shape.q_len = std::max(row.shape.q_len, p.q_len);
    row.shape.kv_len = std::max(row.shape.kv_len, p.kv_len);
  }
  row.kernel = backend.Plan(memory.problems()[0]).kernel;
  row.mask = testing::MaskName(memory.problems()[0]);
  return row;
}

}  // namespace

double CountedFlops(const AttentionProblem& p) {
  if (p.mask.window.active()) return Flops(p);
  const double whole = 4.0 * static_cast<double>(p.batch) * static_cast<double>(p.q_heads) *
                       static_cast<double>(p.q_len) * static_cast<double>(p.kv_len) *
                       static_cast<double>(p.head_dim);
  return p.mask.causal.alignment == kernels::Causal::kNone ? whole : whole / 2;
}

absl::StatusOr<std::vector<Timing>> TimeTasks(absl::Span<const AttentionTask> tasks,
                                              absl::Span<Backend* const> backends,
                                              const MeasureOptions& options) {
  const Checker checker(tasks, options.checked_rows);
  std::vector<Timing> timings;
  std::vector<Contender> contenders;
  for (Backend* backend : backends) {
    auto planned = PlannedBy(*backend, tasks);
    if (!planned.ok()) return planned.status();
    contenders.push_back({*backend, *std::move(planned), nullptr, nullptr, {}, 0});
    checker.Poison();
    ResetPeakRss();
    if (absl::Status status = contenders.back().Prepare(); !status.ok()) return status;
    timings.push_back({.rel_error = checker.RelError(), .peak_rss_mb = PeakRssMb()});
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (Contender& contender : contenders) {
      if (contender.spent_us > kMaxBackendUs) continue;
      if (absl::Status status = contender.RunRound(options.min_time_ms); !status.ok())
        return status;
    }
  }
  for (size_t i = 0; i < timings.size(); ++i)
    timings[i].median_us = Median(contenders[i].rounds_us);
  return timings;
}

absl::StatusOr<std::vector<Row>> Measure(const testing::Case& c,
                                         const std::vector<std::unique_ptr<Backend>>& backends,
                                         const MeasureOptions& options) {
  const CaseMemory memory(c, {.seed = options.seed, .want_lse = false, .watch_inputs = false});
  std::vector<AttentionTask> tasks;
  double flops = 0;
  for (size_t i = 0; i < memory.problems().size(); ++i) {
    tasks.push_back({memory.problems()[i], {}, memory.args()[i]});
    flops += CountedFlops(memory.problems()[i]);
  }
  std::vector<Backend*> pointers;
  for (const auto& backend : backends) pointers.push_back(backend.get());
  const auto timings = TimeTasks(tasks, pointers, options);
  if (!timings.ok()) return timings.status();
  std::vector<Row> rows;
  for (size_t i = 0; i < backends.size(); ++i) {
    rows.push_back(Describe(c, *backends[i], memory));
    rows.back().timing = (*timings)[i];
    rows.back().tflops = flops / rows.back().timing.median_us * 1e-6;
  }
  return rows;
}

}  // namespace attnd::bench
