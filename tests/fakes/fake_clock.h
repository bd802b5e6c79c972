// A clock that stands still until a test moves it.
#ifndef ATTND_TESTS_FAKES_FAKE_CLOCK_H_
#define ATTND_TESTS_FAKES_FAKE_CLOCK_H_

#include <atomic>
#include <chrono>

#include "server/clock.h"

namespace attnd::fakes {

// Waits for a deadline wake without a reason every millisecond of real time, as Clock allows: the
// waiter then looks at Now() again, so moving the clock needs to know nobody. Tests wait for what
// follows from a move, never for a length of time.
class FakeClock final : public server::Clock {
 public:
  // Starts some way from zero, so that a time never set shows.
  FakeClock() : now_(std::chrono::hours(1)) {}

  server::TimePoint Now() const override { return server::TimePoint(now_.load()); }

  void Advance(server::Duration duration) { now_.store(now_.load() + duration); }

  void WaitUntil(CondVar& condition, Mutex& mutex, server::TimePoint deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (deadline == server::kNever) {
      condition.Wait(mutex);
    } else if (Now() < deadline) {
      condition.WaitUntil(mutex, std::chrono::steady_clock::now() + std::chrono::milliseconds(1));
    }
  }

 private:
  std::atomic<server::Duration> now_;
};

}  // namespace attnd::fakes

#endif  // ATTND_TESTS_FAKES_FAKE_CLOCK_H_
