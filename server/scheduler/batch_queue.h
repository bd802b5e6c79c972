// The order of waiting requests and the rule that makes batches of them, without threads or clocks.
#ifndef ATTND_SERVER_SCHEDULER_BATCH_QUEUE_H_
#define ATTND_SERVER_SCHEDULER_BATCH_QUEUE_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/clock.h"
#include "server/job.h"
#include "server/scheduler/scheduler.h"
#include "server/scheduler/tenants.h"

namespace attnd::server {

// Levels that requests start from: priority 1 (highest) to 9; 0, which is what a caller gets that
// says nothing, is the middle, so that there is room on both sides.
inline constexpr int kLowestLevel = 9;
inline constexpr int kDefaultLevel = 5;

// A request rises by one level each time it has waited this long. Longer than a batch takes, so
// that ageing does not disturb the order of a server that keeps up; short enough that the lowest
// priority is served within the patience of most callers.
inline constexpr std::chrono::seconds kAgeStep{1};

// For how long a place is held at most. A message of 256 MB takes a fifth of it.
inline constexpr std::chrono::seconds kPlaceHeld{1};

// Tenants first: start-time fair queueing on predicted device time (Job::predicted). A tenant's
// virtual time moves on by predicted / weight with each request that is taken; the next request is
// that of the tenant whose virtual time is the least, of those that have one waiting. A tenant that
// had nothing waiting starts at the virtual time of the request taken last: it has saved nothing
// up, and is behind nobody. So
//   - of the device time that is handed out while it has requests waiting, a tenant gets
//     weight / (weights of all that have), to within one request of its own and one of each other;
//   - a tenant that had nothing waiting is in the next batch, however much others have: it waits
//     for what has been handed out and for its own batch, each of a quarter of max_slice_us (unless
//     one request alone takes longer and cannot be cut), and for max_batch_delay_us. On a CPU one
//     batch or slice has been handed out, on a GPU there may be three.
//
// Within a tenant: level, then deadline, then arrival. A request starts at its priority's level and
// rises by one after each kAgeStep since its arrival; at level 0, above every priority, deadlines
// no longer count and the order is that of arrival alone. So nobody starves: a request of level n
// is passed by nothing of its tenant that arrives n * kAgeStep after it or later (9 s for the
// lowest priority, 5 s for the default), and from then on waits at most for the requests that
// arrived before it.
//
// Admission: bounds on requests, bytes and predicted time, for all and for each tenant; what a
// tenant's spec leaves open is its weight's share of the bounds for all, so that no tenant fills
// the queue. Where a tenant has nothing waiting, its bounds on bytes and time do not refuse it.
// Predicted time counts as what it takes lately: on a processor that receives calls too, or where
// predictions are too low, more than itself. The bound on it is one on all that a request waits and
// runs: what is left of the batch that runs counts too, and a fifth more, as predictions are not
// exact. The time that its message takes is in it where a place is held for it, as the queue is
// worked off meanwhile.
// Calls whose message is on its way can be counted in (HoldPlace), so that no more are received
// than there will be room for.
//
// Arrival is Request::arrival; the queue takes `now` wherever time matters and never asks a clock.
// Adding and removing are O(log n), taking O(log n + tenants). Not thread-safe.
class BatchQueue {
 public:
  explicit BatchQueue(const SchedulerOptions& options);

  // From now on these are the tenants, one of them the default one; requests of others are its.
  // What waits stays, with its new tenant; what is over new bounds too.
  void SetTenants(const std::vector<TenantSpec>& tenants);

  // OK if `job` may be added; otherwise as Scheduler::Submit refuses.
  absl::Status Admit(const Job& job, TimePoint now) const;

  // OK if a request of the tenant's of which only the size of its message is known would be within
  // the bounds, beside those that wait and those that places are held for, if it takes as long as
  // the mean of those that wait; a message of less than half their mean bytes, as much less.
  absl::Status CheckRoom(const std::string& tenant, int64_t message_bytes, TimePoint now) const;
  // If there is room, counts the request in, for CheckRoom and HoldPlace, until it is let go of by
  // the number that is returned, or kPlaceHeld has passed: who sends so slowly keeps nobody out.
  absl::StatusOr<uint64_t> HoldPlace(const std::string& tenant, int64_t message_bytes,
                                     TimePoint now);
  void LetGo(uint64_t place);

  // Adds a job, behind its equals. It must not be in the queue already, and must be predicted.
  void Add(JobPtr job);
  // Adds jobs that had been taken, in the order in which they were, ahead of their equals, and as
  // if they had never been taken.
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
  // batch past max_batch_bytes or a quarter of max_slice_us. Never passes a request over for a
  // smaller one, but for those that are predicted to take longer than `longest`.
  std::vector<JobPtr> TakeBatch(TimePoint now, Duration longest = Duration::max());

  // kNever if no request has one.
  TimePoint EarliestDeadline() const;
  bool empty() const { return entries_.empty(); }
  int64_t requests() const { return waiting_.requests; }
  // Request::held_bytes of all, which the limits are about.
  int64_t bytes() const { return waiting_.bytes; }
  // Of all.
  Duration predicted() const { return waiting_.predicted; }
  // By tenant: predicted device time that was handed out; what waits.
  std::vector<TenantFacts> tenants();

 private:
  struct Tenant;
  struct Entry {
    JobPtr job;
    Tenant* tenant = nullptr;
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

  // What bounds are about; bytes are Request::held_bytes.
  struct Amount {
    int64_t requests = 0;
    int64_t bytes = 0;
    Duration predicted{};

    Amount& operator+=(const Amount& more) {
      requests += more.requests;
      bytes += more.bytes;
      predicted += more.predicted;
      return *this;
    }
    Amount& operator-=(const Amount& less) {
      requests -= less.requests;
      bytes -= less.bytes;
      predicted -= less.predicted;
      return *this;
    }
    friend Amount operator+(Amount a, const Amount& b) { return a += b; }
  };
  static Amount AmountOf(const Job& job);

  struct Tenant {
    TenantSpec spec;
    // Bounds, with what the spec leaves open filled in.
    int64_t max_requests = 0;
    int64_t max_bytes = 0;
    Duration max_predicted{};
    double start_s = 0;  // virtual time of its next request; earlier ones are over
    Duration handed_out{};
    Duration shown{};                 // of it: a counter never goes back, though requests may
    std::set<Entry*, InOrder> order;  // of what waits
    Amount waiting;
    Amount coming;
  };

  // A place held for a request whose message is on its way.
  struct Place {
    Tenant* tenant = nullptr;
    Amount amount;
    TimePoint until;
  };

  Tenant& TenantOf(const std::string& name) const;
  // What a request counts as of which only this is known.
  Amount Guess(int64_t message_bytes) const;
  // The one whose turn it is, of those that are predicted to take no longer; null if there is none.
  Entry* Next(Duration longest) const;
  absl::Status CheckTotalBounds(const Amount& there, const Amount& more, TimePoint now) const;
  absl::Status CheckTenantBounds(const Tenant& tenant, const Amount& there,
                                 const Amount& more) const;
  // How long what is predicted to take so long takes, by the pace of the batches taken lately.
  Duration AtPace(Duration predicted) const;
  void LearnPace(TimePoint now, Duration taken);
  // About how long what was taken last still runs.
  Duration RunsFor(TimePoint now) const;
  // About how long until what waits before a new request of the tenant's has run.
  Duration WaitOf(const Tenant& tenant) const;
  void FillInBounds();
  // The tenant's virtual time passes a request (sign 1) or is given it back (-1).
  static void Charge(Tenant& tenant, const Job& job, int sign);

  Entry* Insert(JobPtr job, int64_t sequence);
  void GiveTo(Tenant& tenant, Entry* entry);
  JobPtr Extract(Entry* entry);
  // Gives every request the level that its waiting has earned.
  void Age(TimePoint now);

  const SchedulerOptions options_;
  const Duration max_batch_time_;
  // Owns the entries; the sets order those of them that they concern.
  std::unordered_map<const Job*, Entry> entries_;
  std::set<Entry*, ByArrival> arrivals_;
  std::set<Entry*, ByDeadline> deadlines_;  // those that have one
  std::set<Entry*, ByRise> rises_;          // those above level 0
  int64_t bytes_ = 0;                       // payload and answers, wherever they lie
  Amount waiting_;
  Amount coming_;
  std::map<uint64_t, Place> places_;  // by age
  uint64_t last_place_ = 0;
  std::map<std::string, std::unique_ptr<Tenant>> tenants_;  // few: looked through for each request
  Tenant* default_tenant_ = nullptr;
  double virtual_s_ = 0;  // start of the request taken last
  // Sums over the batches taken lately of what they were predicted to take, and of the time until
  // the next was taken, where there always was a next.
  double predicted_lately_s_ = 0;
  double passed_lately_s_ = 0;
  TimePoint taken_at_ = kNever;  // the last of them; kNever: nothing is left
  Duration taken_{};
  TimePoint ends_at_ = TimePoint::min();  // about when what was taken last ends
  int64_t last_sequence_ = 0;
  int64_t first_sequence_ = 0;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SCHEDULER_BATCH_QUEUE_H_
