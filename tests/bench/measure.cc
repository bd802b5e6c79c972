#include "tests/bench/measure.h"

#include <algorithm>
#include <chrono>
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

// Rows of a case that are checked against fp64: seconds of fp64 at length 16384, and enough numbers
// for a norm.
constexpr int64_t kSampledRows = 48;

constexpr double kMaxBackendUs = 2e6;

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Evenly spread over batch, heads and rows, the first and the last among them, in memory order.
std::vector<RowId> SampleRows(const AttentionProblem& p) {
  const int64_t rows = p.batch * p.q_heads * p.q_len;
  const int64_t count = std::min(rows, kSampledRows);
  std::vector<RowId> sample;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = count > 1 ? i * (rows - 1) / (count - 1) : 0;
    const int64_t head = index / p.q_len;
    sample.push_back({head / p.q_heads, head % p.q_heads, index % p.q_len});
  }
  return sample;
}

// The sampled rows of all problems of a case, in fp64, and as a backend left them in memory.
class Checker {
 public:
  explicit Checker(const CaseMemory& memory) : memory_(memory) {
    for (size_t i = 0; i < memory.problems().size(); ++i) {
      const AttentionProblem& p = memory.problems()[i];
      samples_.push_back(SampleRows(p));
      std::vector<double> o(samples_[i].size() * p.head_dim);
      ReferenceRows(p, memory.args()[i], samples_[i], o.data(), nullptr);
      expected_.insert(expected_.end(), o.begin(), o.end());
    }
  }

  double RelError() const {
    std::vector<double> actual;
    for (size_t i = 0; i < samples_.size(); ++i) {
      const AttentionProblem& p = memory_.problems()[i];
      const AttentionArgs& args = memory_.args()[i];
      for (const RowId& id : samples_[i]) {
        const int64_t first = id.batch * args.o_strides.batch + id.q_head * args.o_strides.head +
                              id.row * args.o_strides.row;
        for (int64_t d = 0; d < p.head_dim; ++d) {
          actual.push_back(kernels::LoadElement(args.o, first + d, p.dtype));
        }
      }
    }
    return kernels::RelativeError(actual, expected_);
  }

 private:
  const CaseMemory& memory_;
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

absl::StatusOr<std::vector<Row>> Measure(const testing::Case& c,
                                         const std::vector<std::unique_ptr<Backend>>& backends,
                                         const MeasureOptions& options) {
  CaseMemory memory(c, {.seed = options.seed, .want_lse = false, .watch_inputs = false});
  const Checker checker(memory);
  std::vector<Row> rows;
  std::vector<Contender> contenders;
  for (const auto& backend : backends) {
    rows.push_back(Describe(c, *backend, memory));
    memory.ResetOutputs();
    contenders.push_back({*backend, memory.Tasks(*backend), nullptr, nullptr, {}, 0});
    ResetPeakRss();
    if (absl::Status status = contenders.back().Prepare(); !status.ok()) return status;
    rows.back().peak_rss_mb = PeakRssMb();
    rows.back().rel_error = checker.RelError();
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (Contender& contender : contenders) {
      if (contender.spent_us > kMaxBackendUs) continue;
      if (absl::Status status = contender.RunRound(options.min_time_ms); !status.ok())
        return status;
    }
  }
  double flops = 0;
  for (const AttentionProblem& p : memory.problems()) flops += CountedFlops(p);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].median_us = Median(contenders[i].rounds_us);
    rows[i].tflops = flops / rows[i].median_us * 1e-6;
  }
  return rows;
}

}  // namespace attnd::bench
