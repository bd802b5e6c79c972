// One step of a load: one level of concurrency, one rate, or one pass of a trace.
#ifndef ATTND_CLIENT_TOOLS_LOAD_STEP_H_
#define ATTND_CLIENT_TOOLS_LOAD_STEP_H_

#include <atomic>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/tools/load/arrivals.h"
#include "client/tools/load/flights.h"
#include "client/tools/load/step_result.h"
#include "client/tools/load/work.h"

namespace attnd::tools {

// What is offered.
struct StepSpec {
  enum class Mode {
    kClosed,  // each of `concurrency` callers sends its next call when its last one has ended
    kOpen,    // at `rate`, whatever becomes of the calls
    kTrace    // as `trace` says, `speed` times as fast
  };
  Mode mode = Mode::kClosed;
  int64_t concurrency = 4;
  RateShape rate;
  const std::vector<Arrival>* trace = nullptr;
  double speed = 1;
};

struct StepOptions {
  absl::Duration duration = absl::Seconds(10);
  absl::Duration warmup = absl::Seconds(1);  // before that; its calls are not counted
  absl::Duration window = absl::Seconds(1);
  bool until_stable = false;                  // ends before `duration` once it is
  double tolerance = 0.1;                     // IsStable's
  double percentile = 99;                     // the one that is to be stable
  absl::Duration settle = absl::Seconds(30);  // after sending, before calls are cancelled
  int64_t senders = 2;                        // threads that send, in an open loop
  FlightOptions flights;
};

// Asked about once a window; at the end of the counted time `part` is 1.
struct Progress {
  double part = 0;
  Window last;
};
using OnProgress = std::function<void(const Progress&)>;

// Runs for warmup + duration (a trace: for its own time, without warm-up, `duration` at most), or
// until it is stable, or *stop. Calls under way then are waited for and counted, and every answer
// chosen for it is verified before it returns: that can take longer than the load.
// A caller of a closed loop pauses for 10 ms after a failure, so that a dead server is not spun on;
// in an open one failures change nothing. INVALID_ARGUMENT if verification is asked for a shape
// that is no problem.
absl::StatusOr<StepResult> RunStep(const Clients& clients, const Work& work, const StepSpec& spec,
                                   const StepOptions& options, const std::atomic<bool>& stop,
                                   const OnProgress& on_progress);

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_LOAD_STEP_H_
