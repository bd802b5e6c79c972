#include "client/tools/load/table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/tools/load/rows.h"

namespace attnd::tools {
namespace {

constexpr size_t kMostKindsShown = 8;
constexpr char kFormat[] = "%-24s %10s %10s %9s %8s %9s %9s %9s %9s  %s\n";

std::string Milliseconds(int64_t us) { return absl::StrFormat("%.2f", us / 1000.0); }

std::string Notes(const Step& step) {
  const StepResult& result = step.result;
  std::string notes = result.stable ? "stable" : "not stable";
  if (result.client_bound) absl::StrAppend(&notes, ", client bound");
  if (step.slo_held) absl::StrAppend(&notes, *step.slo_held ? ", held" : ", not held");
  return notes;
}

}  // namespace

std::string TableHead(const Plan& plan) {
  const std::vector<CallKind>& kinds = plan.trace ? plan.trace->kinds : plan.kinds;
  std::string text;
  for (size_t i = 0; i < std::min(kinds.size(), kMostKindsShown); ++i) {
    absl::StrAppend(&text, i == 0 ? "calls      " : "           ", Describe(kinds[i]));
    if (!plan.trace && kinds.size() > 1) absl::StrAppend(&text, " weight ", kinds[i].weight);
    absl::StrAppend(&text, "\n");
  }
  if (kinds.size() > kMostKindsShown) {
    absl::StrAppend(&text, "           and ", kinds.size() - kMostKindsShown, " kinds more\n");
  }
  absl::StrAppendFormat(&text, kFormat, "offered", "offered/s", "answered/s", "answered", "failed",
                        "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "");
  return text;
}

std::string TableLine(const Step& step) {
  const StepResult& result = step.result;
  std::string text = absl::StrFormat(
      kFormat, OfferedText(step.spec), absl::StrFormat("%.1f", result.offered_per_s()),
      absl::StrFormat("%.1f", result.answered_per_s()), absl::StrCat(result.answered),
      absl::StrCat(result.failed()), Milliseconds(result.latency.PercentileUs(50)),
      Milliseconds(result.latency.PercentileUs(90)), Milliseconds(result.latency.PercentileUs(99)),
      Milliseconds(result.latency.PercentileUs(99.9)), Notes(step));
  for (const auto& [code, count] : result.failed_by_code) {
    absl::StrAppendFormat(&text, "           %d failed with %s\n", count,
                          absl::StatusCodeToString(code));
  }
  if (!result.first_error.ok()) {
    absl::StrAppend(&text, "           such as: ", result.first_error.message(), "\n");
  }
  if (result.cancelled > 0)
    absl::StrAppendFormat(&text, "           %d cancelled\n", result.cancelled);
  if (result.lost > 0) absl::StrAppendFormat(&text, "           %d lost\n", result.lost);
  if (result.unsent > 0) {
    absl::StrAppendFormat(&text,
                          "           %d were due, but this client did not come to send them\n",
                          result.unsent);
  }
  if (result.answered_by_device.size() > 1) {
    for (const auto& [device, count] : result.answered_by_device) {
      absl::StrAppendFormat(&text, "           %d answered by %s\n", count, device);
    }
  }
  if (result.verified > 0) {
    absl::StrAppendFormat(&text,
                          "           %d verified against fp64, %d wrong, worst %.3e of %.1e\n",
                          result.verified, result.wrong, result.worst_rel_error, result.bound);
  }
  return text;
}

std::string SloText(const Plan& plan, const RunResult& run) {
  if (!plan.slo || plan.trace) return "";
  const std::string slo =
      absl::StrFormat("p%g within %s", plan.slo->percent, absl::FormatDuration(plan.slo->limit));
  if (!run.slo_rate_per_s) return absl::StrCat("no rate that was tried held ", slo, "\n");
  return absl::StrFormat("%.1f/s is the highest rate that held %s%s\n", *run.slo_rate_per_s, slo,
                         run.slo_is_bounded ? "" : "; none that was tried did not");
}

std::string ProgressBar(const Progress& progress) {
  constexpr int kWidth = 20;
  const int done = std::clamp(static_cast<int>(progress.part * kWidth), 0, kWidth);
  const double length_s = std::max(progress.last.length_s, 1e-6);
  return absl::StrFormat("[%s%s] %3.0f %%  %.1f/s  p99 %s ms", std::string(done, '#'),
                         std::string(kWidth - done, '.'), progress.part * 100,
                         static_cast<double>(progress.last.answered) / length_s,
                         Milliseconds(progress.last.p99_us));
}

}  // namespace attnd::tools
