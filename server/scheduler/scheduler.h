// The bounded queue between calls and executors, and the rule by which it forms batches.
#ifndef ATTND_SERVER_SCHEDULER_SCHEDULER_H_
#define ATTND_SERVER_SCHEDULER_SCHEDULER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "server/clock.h"
#include "server/job.h"
#include "server/metrics/metrics.h"

namespace attnd::server {

struct SchedulerOptions {
  // Requests and payload + answer bytes that may wait; > 0. Beyond either, Submit refuses. What
  // lies in callers' regions takes no memory here and does not count.
  int64_t max_queue_requests = 1024;
  int64_t max_queue_bytes = int64_t{2} << 30;
  // A batch closes at this many requests, > 0, ...
  int64_t max_batch_problems = 64;
  // ... or when the next request would take its payload + answer bytes past this, > 0 (a larger one
  // runs alone), ...
  int64_t max_batch_bytes = int64_t{256} << 20;
  // ... or when its oldest request has waited this long; 0: as soon as an executor asks.
  int64_t max_batch_delay_us = 0;
};

struct Batch {
  uint64_t id = 0;
  std::vector<JobPtr> jobs;
};

// A request's life here: Submit takes it or refuses it; it then waits until it is handed out in a
// batch, cancelled, or past its deadline, whichever comes first. BatchQueue (batch_queue.h) is the
// rule by which requests are ordered, aged, refused and batched.
//
// A batch closes when an executor asks for one and the queue can fill it, or the oldest request has
// waited max_batch_delay_us since its arrival (an arrival during a running batch neither waits for
// that batch's end nor restarts the delay), or the scheduler drains; a request larger than the
// limits of a batch runs alone.
//
// Refused: RESOURCE_EXHAUSTED when the queue is full (naming the limit; the status carries a retry
// pushback, see below: 1..1000 ms, about when the queue will have run, or -1 for a request that can
// never fit), DEADLINE_EXCEEDED when its deadline has passed, CANCELLED when RequestCancel came
// first, UNAVAILABLE after Drain() or Stop(). Expired in the queue: finished with DEADLINE_EXCEEDED
// at its deadline, whether an executor is busy or not, by a thread of the scheduler. Cancelled:
// finished with CANCELLED at once. A refused job is not finished: its owner does that.
//
// Counts refusals with a pushback >= 0 (Metrics::CountPushback); how calls finish is counted by
// their owner.
//
// Thread-safe. Jobs are finished with no lock held.
class Scheduler {
 public:
  // `clock` and `metrics` outlive the scheduler.
  Scheduler(const SchedulerOptions& options, Clock* clock, Metrics* metrics);
  // Finishes what is still queued with UNAVAILABLE. No other call may be running: executors end
  // first.
  ~Scheduler();

  absl::Status Submit(JobPtr job);

  // Waits for the next batch; nullopt once drained and empty, or stopped. Called by executors.
  absl::optional<Batch> NextBatch();

  // The same for an executor that has batches under way: waits until `deadline` at most, which may
  // have passed; nullopt also if there is none by then. May return early without a reason.
  absl::optional<Batch> NextBatchBefore(TimePoint deadline);

  // Takes back, to their old places, jobs of a batch that could not start. They count against the
  // queue's limits but are not refused for them; after Stop(), or cancelled, they are finished.
  void Requeue(const std::vector<JobPtr>& jobs);

  // Takes a queued job out and finishes it with CANCELLED; a running one is marked and ends at its
  // next stage.
  void Cancel(const JobPtr& job);

  // No new requests from now on; what is queued still runs. NextBatch returns nullopt once the
  // queue is empty.
  void Drain();

  // Like Drain, and everything queued is finished with `status` now, which is also what later
  // Submits return. Executors stop after what they hold. Only the first Stop counts.
  void Stop(const absl::Status& status);

  int64_t queued_requests() const;
  int64_t queued_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Status payload that carries when to try again, in milliseconds; negative: never. The service
// turns it into the trailer grpc-retry-pushback-ms.
void SetRetryPushbackMs(absl::Status& status, int64_t pushback_ms);
absl::optional<int64_t> RetryPushbackMs(const absl::Status& status);

}  // namespace attnd::server

#endif  // ATTND_SERVER_SCHEDULER_SCHEDULER_H_
