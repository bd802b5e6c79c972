#include "client/tools/load/step_result.h"

#include <algorithm>
#include <cmath>

namespace attnd::tools {
namespace {

constexpr size_t kWindowsToCompare = 3;

bool AreClose(const std::vector<double>& values, double tolerance) {
  double sum = 0;
  for (double value : values) sum += value;
  const double mean = sum / static_cast<double>(values.size());
  return std::all_of(values.begin(), values.end(),
                     [&](double value) { return std::fabs(value - mean) <= tolerance * mean; });
}

}  // namespace

int64_t StepResult::failed() const {
  int64_t total = 0;
  for (const auto& [code, count] : failed_by_code) total += count;
  return total;
}

double StepResult::offered_per_s() const {
  return static_cast<double>(sent + unsent) / absl::ToDoubleSeconds(sending);
}

double StepResult::answered_per_s() const {
  return static_cast<double>(answered) / absl::ToDoubleSeconds(elapsed);
}

double StepResult::gb_per_s() const {
  return static_cast<double>(payload_bytes) * 1e-9 / absl::ToDoubleSeconds(elapsed);
}

bool IsStable(const std::vector<Window>& windows, double tolerance) {
  if (windows.size() < kWindowsToCompare) return false;
  std::vector<double> rates;
  std::vector<double> latencies;
  for (auto window = windows.end() - kWindowsToCompare; window != windows.end(); ++window) {
    if (window->answered == 0) return false;
    rates.push_back(static_cast<double>(window->answered) / window->length_s);
    latencies.push_back(static_cast<double>(window->chosen_us));
  }
  return AreClose(rates, tolerance) && AreClose(latencies, tolerance);
}

bool IsClientBound(const StepResult& result, int64_t processors) {
  constexpr double kBusy = 0.9;
  // Below this, lateness is how a thread wakes up.
  constexpr int64_t kLateUs = 1000;
  const int64_t shows_us = std::max(kLateUs, result.latency.PercentileUs(99) / 10);
  return 100 * result.unsent > result.sent + result.unsent ||
         result.lateness.PercentileUs(99) > shows_us ||
         result.client_cpus > kBusy * static_cast<double>(processors);
}

}  // namespace attnd::tools
