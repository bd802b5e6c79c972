// The thread that drives one device: takes batches, gives each its memory, runs the stages, and
// ends every job.
#ifndef ATTND_SERVER_EXECUTOR_EXECUTOR_H_
#define ATTND_SERVER_EXECUTOR_EXECUTOR_H_

#include <functional>
#include <memory>

#include "server/clock.h"
#include "server/executor/device.h"
#include "server/memory/buffer_pool.h"
#include "server/metrics/metrics.h"
#include "server/scheduler/scheduler.h"

namespace attnd::server {

struct ExecutorOptions {
  // Called once, on the executor's thread, when the device is lost: the server turns NOT_SERVING
  // and exits non-zero.
  std::function<void(const absl::Status&)> on_device_lost;
  // For so long after something new a GPU's executor looks for more without a pause: a processor's
  // time for some 50 us of a call.
  Duration busy_poll{};
};

// A batch's life here: each job is given the memory of its answer and what it needs of the device,
// then the stages run, then every job ends with its answer. Before each stage, cancelled jobs end
// as CANCELLED and expired ones as DEADLINE_EXCEEDED; the rest goes on. A stage that fails ends
// every job of the batch with its status; INTERNAL also stops the scheduler (UNAVAILABLE for the
// queue and for the other batches under way), then calls on_device_lost.
//
// Batches begin in the order in which the scheduler hands them out, up to Device::max_batches()
// under way at once; each goes to its next stage when it is done with the last one, whatever the
// others do. While any is under way, the thread never waits for the scheduler alone: it looks at
// the device a few dozen times, then between naps.
//
// A batch that the device computes in slices (RunningBatch::in_slices) does not count among those:
// others begin and end between its slices, two such batches take turns, and jobs of theirs that are
// cancelled or expire end before the next slice. So where a device computes on the executor's
// thread, a short request waits for a slice, and not for the whole of a long one.
//
// Jobs that the pool or the device has no room for go back to their places in the queue, where
// deadlines and cancellation still count, and are tried again when something is given back; those
// that found room run meanwhile. An answer that can never fit beside its own payload ends as
// RESOURCE_EXHAUSTED with pushback -1. For waiting to end, the pool's budget must exceed what
// payloads can take of it by the largest answer at least: whoever receives payloads sees to that.
//
// An answer's batch_size counts the requests that were there when the batch ran; queue_us runs from
// the arrival to the first stage, waiting for memory included; the stages' times run from the
// moment a stage is begun to that when it is seen done, so that they add up, waiting for other
// batches included.
class Executor {
 public:
  // All pointers outlive the executor. Starts the thread.
  Executor(const ExecutorOptions& options, Scheduler* scheduler, Device* device, BufferPool* pool,
           Clock* clock, Metrics* metrics);
  // Waits for the thread, which ends when the scheduler hands out nothing more (Drain or Stop come
  // first).
  ~Executor();

  // Runs a job to its end on the caller's thread, if the device can (runs_anywhere), is idle, and
  // the scheduler hands the job out at once, as predicted to take no more than `at_most`: it then
  // needs no other thread. False: nothing was done; Submit it. Thread-safe.
  bool RunHere(const JobPtr& job, Duration at_most);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_EXECUTOR_EXECUTOR_H_
