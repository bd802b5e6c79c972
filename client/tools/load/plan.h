// A whole run of attnload: its steps, one after another.
#ifndef ATTND_CLIENT_TOOLS_LOAD_PLAN_H_
#define ATTND_CLIENT_TOOLS_LOAD_PLAN_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "client/tools/load/search.h"
#include "client/tools/load/step.h"
#include "client/tools/load/work_file.h"

namespace attnd::tools {

// A rate as it was asked for: calls a second, or a part of the capacity, which a closed loop
// measures first.
struct PlannedRate {
  RateShape shape;
  bool of_capacity = false;  // then 1 is the capacity

  bool operator==(const PlannedRate&) const = default;
};

struct Plan {
  std::vector<int64_t> concurrency = {4};  // a step each; the first one also measures the capacity
  std::vector<PlannedRate> rates;          // a step each, in place of the former
  absl::optional<Slo> slo;                 // steps as it takes, from the first rate if there is one
  absl::optional<Trace> trace;             // a step for each speed
  std::vector<double> speeds = {1};
  std::vector<CallKind> kinds;  // of the work; the trace's where there is one
  Transport transport = Transport::kAuto;
  int64_t connections = 1;
  StepOptions step;
};

struct Step {
  StepSpec spec;
  StepResult result;
  absl::optional<bool> slo_held;
};

// What happens on the way, for whoever shows it; any may be null.
struct PlanEvents {
  std::function<void(const StepSpec&)> on_begin;
  OnProgress on_progress;
  std::function<void(const Step&)> on_end;
};

struct RunResult {
  std::vector<Step> steps;
  absl::optional<double> slo_rate_per_s;  // the highest that held
  bool slo_is_bounded = false;            // a higher one was tried and did not hold
};

// Until the plan is through or *stop; steps that were begun are in the result.
absl::StatusOr<RunResult> RunPlan(const Plan& plan, const Clients& clients,
                                  const std::atomic<bool>& stop, const PlanEvents& events);

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_LOAD_PLAN_H_
