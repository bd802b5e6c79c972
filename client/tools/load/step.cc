#include "client/tools/load/step.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>

#include "client/tools/load/offer.h"

namespace attnd::tools {
namespace {

using Clock = std::chrono::steady_clock;

// How soon *stop is seen.
constexpr std::chrono::milliseconds kTick{50};

absl::Duration ProcessCpuTime() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
}

int64_t Processors() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Follows a step through its counted time.
struct Watch {
  const StepOptions& options;
  const std::atomic<bool>& stop;
  const OnProgress& on_progress;
  Recorder& recorder;
  Offer& offer;
  bool stable = false;

  // Until the time is over, the arrivals are, it is stable, or stopped.
  Clock::time_point Run(Clock::time_point begin) {
    const Clock::time_point end = begin + absl::ToChronoNanoseconds(options.duration);
    Clock::time_point window_end = begin + absl::ToChronoNanoseconds(options.window);
    for (;;) {
      const Clock::time_point next = std::min(end, window_end);
      const bool goes_on = Wait(next);
      const Clock::time_point now = Clock::now();
      if (now >= window_end) {
        window_end += absl::ToChronoNanoseconds(options.window);
        if (Close(now, begin) && options.until_stable) return now;
      }
      if (now >= end) return end;
      if (!goes_on) return std::max(now, begin + std::chrono::microseconds(1));
    }
  }

 private:
  bool Wait(Clock::time_point when) {
    while (!stop && Clock::now() < when) {
      if (!offer.WaitUntil(std::min(when, Clock::now() + kTick))) return false;
    }
    return !stop;
  }
  // Whether it is stable now.
  bool Close(Clock::time_point now, Clock::time_point begin) {
    const std::vector<Window> windows = recorder.CloseWindow(now);
    stable = IsStable(windows, options.tolerance);
    const double part = std::chrono::duration<double>(now - begin).count() /
                        absl::ToDoubleSeconds(options.duration);
    if (on_progress) on_progress({std::min(part, 1.0), windows.back()});
    return stable;
  }
};

}  // namespace

absl::StatusOr<StepResult> RunStep(const Clients& clients, const Work& work, const StepSpec& spec,
                                   const StepOptions& options, const std::atomic<bool>& stop,
                                   const OnProgress& on_progress) {
  StepOptions used = options;
  if (spec.mode == StepSpec::Mode::kTrace) used.warmup = absl::ZeroDuration();
  const Clock::time_point start = Clock::now();
  const Clock::time_point begin = start + absl::ToChronoNanoseconds(used.warmup);
  Recorder recorder(begin, used.percentile);
  Verifier verifier(work);
  Flights flights(clients, work, used.flights, recorder, verifier);
  Offer offer(spec, used, work, flights, recorder, start);
  const absl::Duration cpu_before = ProcessCpuTime();
  Watch watch{used, stop, on_progress, recorder, offer};
  const Clock::time_point end = watch.Run(begin);
  const absl::Duration cpu = ProcessCpuTime() - cpu_before - verifier.cpu_time();
  offer.Stop(end);
  flights.Land(Clock::now() + absl::ToChronoNanoseconds(used.settle));
  recorder.CloseWindow(Clock::now());  // of calls that ended late; tells nothing of stability

  StepResult result = recorder.Result();
  result.sending = absl::FromChrono(end - begin);
  result.elapsed = std::max(result.elapsed, result.sending);
  result.client_cpus = absl::FDivDuration(cpu, absl::FromChrono(end - start));
  result.stable = watch.stable;
  result.client_bound = IsClientBound(result, Processors());
  verifier.Finish();
  if (absl::Status status = verifier.AddTo(&result); !status.ok()) return status;
  if (on_progress) on_progress({1.0, result.windows.empty() ? Window() : result.windows.back()});
  return result;
}

}  // namespace attnd::tools
