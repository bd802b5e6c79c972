#include "client/tools/load/plan.h"

#include <memory>
#include <utility>

namespace attnd::tools {
namespace {

struct Runner {
  const Plan& plan;
  const Clients& clients;
  const Work& work;
  const std::atomic<bool>& stop;
  const PlanEvents& events;
  RunResult run;

  absl::Status RunStepOf(const StepSpec& spec, const StepOptions& options) {
    if (events.on_begin) events.on_begin(spec);
    auto result = RunStep(clients, work, spec, options, stop, events.on_progress);
    if (!result.ok()) return result.status();
    Step step{spec, *std::move(result), absl::nullopt};
    if (plan.slo) step.slo_held = Holds(*plan.slo, step.result);
    run.steps.push_back(std::move(step));
    if (events.on_end) events.on_end(run.steps.back());
    return absl::OkStatus();
  }

  absl::Status Closed(int64_t concurrency) {
    StepSpec spec;
    spec.concurrency = concurrency;
    return RunStepOf(spec, plan.step);
  }

  absl::Status Open(const RateShape& rate, const StepOptions& options) {
    StepSpec spec;
    spec.mode = StepSpec::Mode::kOpen;
    spec.rate = rate;
    return RunStepOf(spec, options);
  }

  // Calls a second of a closed loop. FAILED_PRECONDITION if it had no answer.
  absl::StatusOr<double> Capacity() {
    if (absl::Status status = Closed(plan.concurrency.front()); !status.ok()) return status;
    const StepResult& result = run.steps.back().result;
    if (result.answered > 0) return result.answered_per_s();
    return absl::FailedPreconditionError(
        absl::StrCat("the capacity cannot be measured, for no call was answered",
                     result.first_error.ok() ? "" : ": ", result.first_error.message()));
  }

  absl::Status Sweep() {
    absl::optional<double> capacity;
    for (const PlannedRate& planned : plan.rates) {
      if (planned.of_capacity && !capacity) {
        const absl::StatusOr<double> measured = Capacity();
        if (!measured.ok()) return measured.status();
        capacity = *measured;
      }
      if (stop) break;
      RateShape rate = planned.shape;
      const double unit = planned.of_capacity ? *capacity : 1;
      rate.from_per_s *= unit;
      rate.to_per_s *= unit;
      if (absl::Status status = Open(rate, plan.step); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Search() {
    RateShape rate;
    if (plan.rates.empty() || plan.rates.front().of_capacity) {
      const absl::StatusOr<double> capacity = Capacity();
      if (!capacity.ok()) return capacity.status();
      if (!plan.rates.empty()) rate = plan.rates.front().shape;
      rate.from_per_s = *capacity * (plan.rates.empty() ? 0.5 : rate.from_per_s);
    } else {
      rate = plan.rates.front().shape;
    }
    StepOptions options = plan.step;
    options.percentile = plan.slo->percent;
    RateSearch search(rate.from_per_s);
    while (!stop && search.next_per_s()) {
      rate.from_per_s = rate.to_per_s = *search.next_per_s();
      if (absl::Status status = Open(rate, options); !status.ok()) return status;
      search.Tell(*run.steps.back().slo_held);
    }
    run.slo_rate_per_s = search.highest_per_s();
    run.slo_is_bounded = search.lowest_broken_per_s().has_value();
    return absl::OkStatus();
  }

  absl::Status Replay() {
    for (double speed : plan.speeds) {
      if (stop) break;
      StepSpec spec;
      spec.mode = StepSpec::Mode::kTrace;
      spec.trace = &plan.trace->arrivals;
      spec.speed = speed;
      if (absl::Status status = RunStepOf(spec, plan.step); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Run() {
    if (plan.trace) return Replay();
    if (plan.slo) return Search();
    if (!plan.rates.empty()) return Sweep();
    for (int64_t concurrency : plan.concurrency) {
      if (stop && !run.steps.empty()) break;
      if (absl::Status status = Closed(concurrency); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<RunResult> RunPlan(const Plan& plan, const Clients& clients,
                                  const std::atomic<bool>& stop, const PlanEvents& events) {
  auto work = Work::Create(plan.trace ? plan.trace->kinds : plan.kinds, plan.transport,
                           plan.step.flights.seed);
  if (!work.ok()) return work.status();
  Runner runner{plan, clients, **work, stop, events, {}};
  if (absl::Status status = runner.Run(); !status.ok()) return status;
  return std::move(runner.run);
}

}  // namespace attnd::tools
