// Which device a request goes to.
#ifndef ATTND_SERVER_EXECUTOR_DISPATCHER_H_
#define ATTND_SERVER_EXECUTOR_DISPATCHER_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/clock.h"
#include "server/executor/device.h"
#include "server/executor/executor.h"
#include "server/scheduler/scheduler.h"

namespace attnd::server {

// How much work a device does in a second while it has any: an exponentially weighted mean over
// stretches of kStretch, so that the jobs of a batch, which end together, are one sample. Not
// thread-safe.
class RateEstimate {
 public:
  static constexpr std::chrono::milliseconds kStretch{5};

  // Work begins to wait, where none did.
  void Busy(TimePoint now);
  // So much of it is done.
  void Done(TimePoint now, double work);
  // 0 while nothing is known.
  double per_second() const { return per_second_; }

 private:
  TimePoint since_{};
  double work_ = 0;  // since then
  double per_second_ = 0;
};

// A device with the queue in front of it, and who runs what is in it. Without an executor every
// request goes through the queue.
struct Lane {
  Device* device = nullptr;
  Scheduler* scheduler = nullptr;
  Executor* executor = nullptr;
};

// A request goes to the device that will finish it first: that with the least (work it has + this
// request's) / its rate, of those that support all of its problems. Work is counted in flops, from
// Submit to the job's end, however it ends. Devices of one name and backend are equally fast, as
// the fastest of them; one whose rate is not known yet is taken to be as fast as the fastest that
// is. Of equals it goes to the one that has been given less so far, so that a light load is shared
// too. With one lane nothing is counted. A request with tensors on a GPU goes to that one.
//
// Thread-safe.
class Dispatcher {
 public:
  // All outlive the dispatcher; jobs submitted may end after it.
  Dispatcher(std::vector<Lane> lanes, Clock* clock);
  ~Dispatcher();

  // OK if one device does; else why the first does not.
  absl::Status Supports(const kernels::AttentionProblem& problem) const;
  // As Scheduler::Submit and Cancel; also UNIMPLEMENTED where no device supports all of its
  // problems. A job that is predicted to take no more than `most_here` may have ended when Submit
  // returns (Executor::RunHere).
  absl::Status Submit(const JobPtr& job, Duration most_here);
  void Cancel(const JobPtr& job);
  // As Scheduler::HoldPlace, on the first device that has room; if none has, as the first refuses.
  absl::StatusOr<QueuePlace> HoldPlace(const std::string& tenant, int64_t message_bytes) const;

 private:
  class Load;
  std::vector<Lane> lanes_;
  Clock* const clock_;
  std::shared_ptr<Load> load_;  // jobs hold it too
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_EXECUTOR_DISPATCHER_H_
