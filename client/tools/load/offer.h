// The threads that send a step's calls.
#ifndef ATTND_CLIENT_TOOLS_LOAD_OFFER_H_
#define ATTND_CLIENT_TOOLS_LOAD_OFFER_H_

#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/tools/load/step.h"
#include "kernels/sync.h"

namespace attnd::tools {

// Sends until it is stopped; a trace also ends by itself.
class Offer {
 public:
  using TimePoint = Recorder::TimePoint;

  // Begins. The warm-up begins at `start`, the counted time `warmup` later. All must outlive it.
  Offer(const StepSpec& spec, const StepOptions& options, const Work& work, Flights& flights,
        Recorder& recorder, TimePoint start);
  ~Offer();  // Stop()

  // Waits until `when`, or the end of a trace; false: it has ended.
  bool WaitUntil(TimePoint when) ABSL_LOCKS_EXCLUDED(mutex_);

  // Threads have ended when it returns; calls may be under way. What was due by `now` and has not
  // been sent is recorded as unsent.
  void Stop(TimePoint now) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Slot;

  void RunCaller(std::shared_ptr<Slot> slot, size_t number);
  void RunSender();
  absl::optional<Arrival> NextArrival() ABSL_LOCKS_EXCLUDED(mutex_);
  // False: stopped before.
  bool SleepUntil(TimePoint when) ABSL_LOCKS_EXCLUDED(mutex_);

  const Work& work_;
  Flights& flights_;
  Recorder& recorder_;
  const TimePoint start_;
  const int64_t seed_;
  const bool ends_by_itself_;

  Mutex mutex_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t unsent_ ABSL_GUARDED_BY(mutex_) = 0;   // taken, but not sent before it was stopped
  int64_t running_ ABSL_GUARDED_BY(mutex_) = 0;  // threads
  std::unique_ptr<Arrivals> arrivals_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Slot>> slots_;  // a caller each
  std::vector<std::thread> threads_;
};

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_LOAD_OFFER_H_
