// The bounded queue between calls and executors, and the rule by which it forms batches.
#ifndef ATTND_SERVER_SCHEDULER_SCHEDULER_H_
#define ATTND_SERVER_SCHEDULER_SCHEDULER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "server/clock.h"
#include "server/job.h"
#include "server/metrics/metrics.h"
#include "server/scheduler/cost_model.h"
#include "server/scheduler/queue_place.h"
#include "server/scheduler/refusal.h"
#include "server/scheduler/tenants.h"

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
  // ... or before the request that would take its predicted device time past a quarter of this (a
  // longer one runs alone): a new request then waits no longer than this for the batches that have
  // been handed out, up to three, and for those that run with it. 0: no bound.
  int64_t max_slice_us = 20'000;
  // For how long a request may wait and run: one that could take longer, behind what runs and
  // waits, is refused, but never one that would wait alone. 0: no bound.
  int64_t max_queue_ms = 0;
  // Where the predictions start: the device's kind.
  CostRates rates = CpuRates(1);
};

// What max_slice_us leaves for a batch.
Duration MaxBatchTime(const SchedulerOptions& options);

// For metrics.
struct TenantFacts {
  std::string name;
  int64_t requests = 0;   // that wait
  Duration handed_out{};  // predicted device time, since the start
};

struct Batch {
  uint64_t id = 0;
  std::vector<JobPtr> jobs;
};

// A request's life here: Submit takes it or refuses it; it then waits until it is handed out in a
// batch, cancelled, or past its deadline, whichever comes first. BatchQueue (batch_queue.h) is the
// rule by which requests are ordered, aged, refused and batched.
//
// Requests are predicted as they come (cost_model.h): a request whose deadline even an idle device
// could not meet is refused at once, batches are cut by predicted time, tenants share it, and
// refused callers are told how much of it waits.
//
// A batch closes when an executor asks for one and the queue can fill it, or the oldest request has
// waited max_batch_delay_us since its arrival (an arrival during a running batch neither waits for
// that batch's end nor restarts the delay), or the scheduler drains; a request larger than the
// limits of a batch runs alone.
//
// Refused: RESOURCE_EXHAUSTED when the queue, or the tenant's share of it, is full (naming the
// bound; the status carries a retry pushback, refusal.h: the predicted wait, or -1 for a request
// that can never fit), DEADLINE_EXCEEDED when its deadline has passed or cannot be met, CANCELLED
// when RequestCancel came first, UNAVAILABLE after Drain() or Stop(). Expired in the queue:
// finished with DEADLINE_EXCEEDED at its deadline, whether an executor is busy or not, by a thread
// of the scheduler. Cancelled: finished with CANCELLED at once. A refused job is not finished: its
// owner does that.
//
// Counts refusals, and those with a pushback >= 0 (Metrics::CountRefusal, CountPushback); how calls
// finish is counted by their owner.
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

  // For callers whose requests have not been received, and might be in vain: refuses as Submit
  // would, if it would refuse a request of the tenant's now that is as those that wait. Otherwise
  // counts it in (BatchQueue::HoldPlace) until the place is destroyed, but for messages so small
  // that they come with their headers: those get no place. A refusal is not counted.
  absl::StatusOr<QueuePlace> HoldPlace(const std::string& tenant, int64_t message_bytes);

  // Hands the job out at once as a batch of its own, if nothing is queued, it would be taken, no
  // batch is to wait for others (max_batch_delay_us 0), and it is predicted to take `at_most`;
  // else nullopt, and nothing was done. By whoever runs batches.
  absl::optional<Batch> TakeAlone(const JobPtr& job, Duration at_most);

  // Waits for the next batch; nullopt once drained and empty, or stopped. Called by executors.
  absl::optional<Batch> NextBatch();

  // The same for an executor that has batches under way: waits until `deadline` at most, which may
  // have passed; nullopt also if there is none by then. May return early without a reason. Passes
  // over requests that are predicted to take longer than `longest`.
  absl::optional<Batch> NextBatchBefore(TimePoint deadline, Duration longest = Duration::max());

  // Takes back, to their old places, jobs of a batch that could not start. They count against the
  // queue's limits but are not refused for them; after Stop(), or cancelled, they are finished.
  void Requeue(const std::vector<JobPtr>& jobs);

  // Takes a queued job out and finishes it with CANCELLED; a running one is marked and ends at its
  // next stage.
  void Cancel(const JobPtr& job);

  // No new requests from now on; what is queued still runs. NextBatch returns nullopt once the
  // queue is empty.
  void Drain();

  // Whether Drain() or Stop() has been called: no batch comes beside those of what is queued.
  bool draining() const;

  // Like Drain, and everything queued is finished with `status` now, which is also what later
  // Submits return. Executors stop after what they hold. Only the first Stop counts.
  void Stop(const absl::Status& status);

  // As BatchQueue::SetTenants; no call is dropped.
  void SetTenants(const std::vector<TenantSpec>& tenants);

  // As far as batches are filled: MaxBatchTime of the options.
  Duration max_batch_time() const;

  // How near a batch with these jobs is to its nearest limit: 1 is full.
  double FillOf(const std::vector<JobPtr>& jobs) const;
  // Executors tell it what batches took.
  CostModel& costs();

  int64_t queued_requests() const;
  int64_t queued_bytes() const;
  Duration queued_time() const;
  std::vector<TenantFacts> tenants();

 private:
  friend class QueuePlace;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SCHEDULER_SCHEDULER_H_
