// The order of waiting requests and the rule that makes batches of them, without threads or clocks.
#ifndef ATTND_SERVER_SCHEDULER_BATCH_QUEUE_H_
#define ATTND_SERVER_SCHEDULER_BATCH_QUEUE_H_

#include <chrono>
#include <cstdint>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "server/clock.h"
#include "server/job.h"
#include "server/scheduler/scheduler.h"

namespace attnd::server {

// Levels that requests start from: priority 1 (highest) to 9; 0, which is what a caller gets that
// says nothing, is the middle, so that there is room on both sides.
inline constexpr int kLowestLevel = 9;
inline constexpr int kDefaultLevel = 5;

// A request rises by one level each time it has waited this long. Longer than a batch takes, so
// that ageing does not disturb the order of a server that keeps up; short enough that the lowest
// priority is served within the patience of most callers.
inline constexpr std::chrono::seconds kAgeStep{1};

// Order: level, then deadline, then arrival. A request starts at its priority's level and rises by
// one after each kAgeStep since its arrival; at level 0, above every priority, deadlines no longer
// count and the order is that of arrival alone. So nobody starves: a request of level n is passed
// by nothing that arrives n * kAgeStep after it or later (9 s for the lowest priority, 5 s for the
// default), and from then on waits at most for the requests that arrived before it.
//
// Arrival is Request::arrival; the queue takes `now` wherever time matters and never asks a clock.
// Adding and removing are O(log n). Not thread-safe.
class BatchQueue {
 public:
  explicit BatchQueue(const SchedulerOptions& options);

  // OK if `job` may be added; otherwise as Scheduler::Submit refuses. The pushback of a request
  // that can never fit is set, that of a full queue is left to the caller.
  absl::Status Admit(const Job& job, TimePoint now) const;

  // Adds a job, behind its equals. It must not be in the queue already.
  void Add(JobPtr job) { Insert(std::move(job), ++last_sequence_); }
  // Adds jobs that had been taken, in the order in which they were, ahead of their equals.
  void AddBack(const std::vector<JobPtr>& jobs);

  // Null if it is not in the queue.
  JobPtr Remove(const Job& job);
  // Those whose deadline is not after `now`, earliest first.
  std::vector<JobPtr> TakeExpired(TimePoint now);
  std::vector<JobPtr> TakeAll();

  // From when on a batch may be taken: now, if the queue fills one; the oldest request's delay;
  // kNever if the queue is empty. Moves only when something is added or taken.
  TimePoint BatchDue() const;
  // The next batch: up to max_batch_problems requests in order, up to the first that would take the
  // batch past max_batch_bytes. Never passes a request over for a smaller one.
  std::vector<JobPtr> TakeBatch(TimePoint now);

  // kNever if no request has one.
  TimePoint EarliestDeadline() const;
  bool empty() const { return entries_.empty(); }
  int64_t requests() const { return static_cast<int64_t>(entries_.size()); }
  // Request::held_bytes of all, which the limits are about.
  int64_t bytes() const { return held_bytes_; }

 private:
  struct Entry {
    JobPtr job;
    int64_t bytes = 0;
    TimePoint arrival;
    int64_t sequence = 0;  // unique; breaks every tie
    int level = 0;
    TimePoint deadline;  // for the order: before everything at level 0
    TimePoint rises_at;  // kNever at level 0
  };
  struct InOrder {
    bool operator()(const Entry* a, const Entry* b) const {
      return std::tie(a->level, a->deadline, a->arrival, a->sequence) <
             std::tie(b->level, b->deadline, b->arrival, b->sequence);
    }
  };
  struct ByArrival {
    bool operator()(const Entry* a, const Entry* b) const {
      return std::tie(a->arrival, a->sequence) < std::tie(b->arrival, b->sequence);
    }
  };
  struct ByDeadline {
    bool operator()(const Entry* a, const Entry* b) const {
      return std::tie(a->job->request().deadline, a->sequence) <
             std::tie(b->job->request().deadline, b->sequence);
    }
  };
  struct ByRise {
    bool operator()(const Entry* a, const Entry* b) const {
      return std::tie(a->rises_at, a->sequence) < std::tie(b->rises_at, b->sequence);
    }
  };

  void Insert(JobPtr job, int64_t sequence);
  JobPtr Extract(Entry* entry);
  // Gives every request the level that its waiting has earned.
  void Age(TimePoint now);

  const SchedulerOptions options_;
  // Owns the entries; the sets order those of them that they concern.
  std::unordered_map<const Job*, Entry> entries_;
  std::set<Entry*, InOrder> order_;
  std::set<Entry*, ByArrival> arrivals_;
  std::set<Entry*, ByDeadline> deadlines_;  // those that have one
  std::set<Entry*, ByRise> rises_;          // those above level 0
  int64_t bytes_ = 0;                       // payload and answers, wherever they lie
  int64_t held_bytes_ = 0;                  // of which the server's
  int64_t last_sequence_ = 0;
  int64_t first_sequence_ = 0;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SCHEDULER_BATCH_QUEUE_H_
