// Deadlines of calls, watched by one thread.
#ifndef ATTND_SERVER_SERVICES_DEADLINE_WATCH_H_
#define ATTND_SERVER_SERVICES_DEADLINE_WATCH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "kernels/sync.h"
#include "server/clock.h"

namespace attnd::server {

// gRPC's alarms would do, but each wakes a thread when it is taken back, which nearly all are.
// Thread-safe.
class DeadlineWatch {
 public:
  // `clock` outlives it.
  explicit DeadlineWatch(Clock* clock) : clock_(clock), thread_([this] { Watch(); }) {}
  // What is still watched is dropped.
  ~DeadlineWatch();
  DeadlineWatch(const DeadlineWatch&) = delete;

  class Entry {
   public:
    Entry() = default;

   private:
    friend class DeadlineWatch;
    using Key = std::pair<TimePoint, uint64_t>;
    explicit Entry(Key key) : key_(key) {}
    Key key_{};
  };

  // Calls `passed` once, soon after `when`, on the thread of the watch, unless it is taken back
  // first. `passed` must be short.
  Entry Add(TimePoint when, std::function<void()> passed) ABSL_LOCKS_EXCLUDED(mutex_);
  // Nothing happens if `passed` has been called, is being called, or was taken back.
  void TakeBack(const Entry& entry) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Watch() ABSL_LOCKS_EXCLUDED(mutex_);

  Clock* const clock_;
  Mutex mutex_;
  CondVar changed_;
  std::map<Entry::Key, std::function<void()>> entries_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  // It is not told of deadlines that have gone: to wake once too often at the time of one costs
  // less than to be woken with every call.
  TimePoint wakes_at_ ABSL_GUARDED_BY(mutex_) = TimePoint::min();
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_DEADLINE_WATCH_H_
