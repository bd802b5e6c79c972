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
  // Requests and payload + answer bytes that may wait; > 0. Beyond either, Submit refuses.
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
// batch, cancelled, or past its deadline, whichever comes first. Order: priority (0 first), then
// deadline, then arrival.
//
// A batch closes when an executor asks for one and the queue can fill it, or the oldest request has
// waited max_batch_delay_us; a request larger than the limits of a batch runs alone.
//
// Refused: RESOURCE_EXHAUSTED when the queue is full (with GrpcRetryPushback, see below),
// UNAVAILABLE after Drain(). Expired in the queue: finished with DEADLINE_EXCEEDED at its deadline,
// whether an executor is busy or not, by a thread of the scheduler. Cancelled: finished with
// CANCELLED at once. A refused job is not finished: its owner does that.
//
// Thread-safe. Jobs are finished with no lock held.
class Scheduler {
 public:
  // `clock` and `metrics` outlive the scheduler.
  Scheduler(const SchedulerOptions& options, Clock* clock, Metrics* metrics);
  // Finishes what is still queued with UNAVAILABLE.
  ~Scheduler();

  absl::Status Submit(JobPtr job);

  // Waits for the next batch; nullopt once drained and empty, or stopped. Called by executors.
  absl::optional<Batch> NextBatch();

  // Takes a queued job out and finishes it with CANCELLED; a running one is marked and ends at its
  // next stage.
  void Cancel(const JobPtr& job);

  // No new requests from now on; what is queued still runs. NextBatch returns nullopt once the
  // queue is empty.
  void Drain();

  // Like Drain, and everything queued is finished with `status` now. Executors stop after what they
  // hold.
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
