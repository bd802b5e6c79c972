// How fast the executors serve, roughly.
#ifndef ATTND_SERVER_SCHEDULER_SERVICE_ESTIMATE_H_
#define ATTND_SERVER_SCHEDULER_SERVICE_ESTIMATE_H_

#include <algorithm>
#include <cstdint>

#include "server/clock.h"

namespace attnd::server {

// An exponentially weighted mean of the time per request, from the time between handing a batch out
// and an executor's asking for the next. With several executors that time is the shorter, as their
// common rate is the higher; an executor with several batches under way asks when one of them has
// made room, so that between batches of a steady load it is the time of one. Good enough to tell a
// refused caller when to come again. Not thread-safe.
class ServiceEstimate {
 public:
  void HandedOut(TimePoint now, int64_t requests) {
    handed_out_at_ = now;
    requests_ = requests;
  }
  // What was handed out came back undone: it says nothing about the time of service.
  void Discard() { requests_ = 0; }

  void Asked(TimePoint now) {
    if (requests_ == 0) return;
    const int64_t sample_us = ToMicroseconds(now - handed_out_at_) / requests_;
    // Weight 1/8: a few batches settle it, one odd batch does not upset it.
    request_us_ = seen_any_ ? request_us_ + (sample_us - request_us_) / 8 : sample_us;
    seen_any_ = true;
    requests_ = 0;
  }

  // About how long until `queued` requests have been served, from 1 to 1000 ms: a caller told more
  // would outwait its retry budget for nothing. 100 ms while nothing is known.
  int64_t PushbackMs(int64_t queued) const {
    if (!seen_any_) return 100;
    return std::clamp<int64_t>(request_us_ * queued / 1000, 1, 1000);
  }

 private:
  TimePoint handed_out_at_{};
  int64_t requests_ = 0;  // of the last batch handed out; 0: already counted
  int64_t request_us_ = 0;
  bool seen_any_ = false;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SCHEDULER_SERVICE_ESTIMATE_H_
