// One thread that runs functions: now, or at a time.
#ifndef ATTND_CLIENT_LOOP_H_
#define ATTND_CLIENT_LOOP_H_

#include <chrono>
#include <functional>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "kernels/sync.h"

namespace attnd::client {

// Functions run one after another, in the order of their times. What is waiting is bounded by its
// users: a call has at most one function here for its retry, one for its end, and one to look after
// its memory. Thread-safe.
class Loop {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  Loop();
  ~Loop();  // Stop()

  void Post(std::function<void()> function) { PostAt({}, std::move(function)); }
  // After Stop: dropped.
  void PostAt(TimePoint when, std::function<void()> function) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the thread; what has not run is dropped. Not from the loop's own thread.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::multimap<TimePoint, std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace attnd::client

#endif  // ATTND_CLIENT_LOOP_H_
