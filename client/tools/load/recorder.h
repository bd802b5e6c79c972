// Counts the calls of a step as they are sent and end.
#ifndef ATTND_CLIENT_TOOLS_LOAD_RECORDER_H_
#define ATTND_CLIENT_TOOLS_LOAD_RECORDER_H_

#include <chrono>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/tools/load/step_result.h"
#include "kernels/sync.h"

namespace attnd::tools {

// Memory: two histograms, and a Window for each window that was closed. Thread-safe.
class Recorder {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Calls that are due before `begin` are warm-up. `percentile`: whose value windows show as
  // chosen.
  Recorder(TimePoint begin, double percentile);

  void Sent(TimePoint due, TimePoint now) ABSL_LOCKS_EXCLUDED(mutex_);
  // With what it ended; `cancelled`: the client had asked for that.
  void Ended(TimePoint due, const absl::StatusOr<AttentionResult>& result, bool cancelled)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Was due, and will not be sent.
  void Unsent() ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the window that began when the last one ended; all windows so far.
  std::vector<Window> CloseWindow(TimePoint now) ABSL_LOCKS_EXCLUDED(mutex_);

  // So far. `lost` is what has been sent and has not ended; elapsed is to the last end. The rest of
  // a result that is not about calls is left at its defaults.
  StepResult Result() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void CountAnswer(const AttentionResult& answer, int64_t latency_us)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const TimePoint begin_;
  const double percentile_;

  mutable Mutex mutex_;
  StepResult result_ ABSL_GUARDED_BY(mutex_);
  TimePoint last_end_ ABSL_GUARDED_BY(mutex_);
  TimePoint window_begin_ ABSL_GUARDED_BY(mutex_);
  Window window_ ABSL_GUARDED_BY(mutex_);
  Histogram window_latency_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_LOAD_RECORDER_H_
