// Time as the server sees it: a steady clock behind an interface, so that the scheduler is tested
// without sleeping.
#ifndef ATTND_SERVER_CLOCK_H_
#define ATTND_SERVER_CLOCK_H_

#include <chrono>

#include "kernels/sync.h"

namespace attnd::server {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;
using std::chrono::microseconds;

inline constexpr TimePoint kNever = TimePoint::max();

inline int64_t ToMicroseconds(Duration duration) {
  return std::chrono::duration_cast<microseconds>(duration).count();
}

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
  // Waits on `condition` until it is notified or `deadline` passes; kNever waits for the
  // notification alone. May wake without a reason.
  virtual void WaitUntil(CondVar& condition, Mutex& mutex, TimePoint deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) = 0;
};

class SteadyClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
  void WaitUntil(CondVar& condition, Mutex& mutex, TimePoint deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (deadline == kNever) {
      condition.Wait(mutex);
    } else {
      condition.WaitUntil(mutex, deadline);
    }
  }
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_CLOCK_H_
