#include "server/scheduler/batch_queue.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace attnd::server {
namespace {

int StartLevel(int priority) {
  return priority <= 0 ? kDefaultLevel : std::min(priority, kLowestLevel);
}

int64_t BytesOf(const Request& request) { return request.payload_bytes() + request.answer_bytes(); }

// Of the sums that the pace is from, at each batch: a few dozen count.
constexpr double kPaceKept = 0.97;
// A device that stood still for a while is not that slow.
constexpr double kSlowestPace = 2;

double ToSeconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

BatchQueue::Amount BatchQueue::AmountOf(const Job& job) {
  return {1, job.request().held_bytes(), job.predicted()};
}

BatchQueue::BatchQueue(const SchedulerOptions& options)
    : options_(options), max_batch_time_(MaxBatchTime(options)) {
  assert(options.max_queue_requests > 0 && options.max_queue_bytes > 0);
  assert(options.max_batch_problems > 0 && options.max_batch_bytes > 0);
  assert(options.max_batch_delay_us >= 0 && options.max_queue_ms >= 0 && options.max_slice_us >= 0);
  SetTenants({TenantSpec()});
}

void BatchQueue::SetTenants(const std::vector<TenantSpec>& tenants) {
  auto before = std::exchange(tenants_, {});
  for (const TenantSpec& spec : tenants) {
    std::unique_ptr<Tenant> tenant = std::move(before[spec.name]);
    if (tenant == nullptr) tenant = std::make_unique<Tenant>();
    tenant->spec = spec;
    tenants_[spec.name] = std::move(tenant);
  }
  default_tenant_ = tenants_.at(kDefaultTenant).get();
  FillInBounds();
  // What is coming counts no more: its tenant may be gone.
  places_.clear();
  coming_ = Amount();
  for (const auto& [name, tenant] : tenants_) tenant->coming = Amount();
  // A new tenant's requests waited with the default one's, and go on waiting there.
  for (auto& [name, tenant] : before) {
    while (tenant != nullptr && !tenant->order.empty()) {
      Entry* const entry = *tenant->order.begin();
      tenant->order.erase(entry);
      GiveTo(*default_tenant_, entry);
    }
  }
}

BatchQueue::Tenant& BatchQueue::TenantOf(const std::string& name) const {
  if (tenants_.size() == 1) return *default_tenant_;
  const auto found = tenants_.find(name);
  return found == tenants_.end() ? *default_tenant_ : *found->second;
}

void BatchQueue::Charge(Tenant& tenant, const Job& job, int sign) {
  tenant.start_s += sign * ToSeconds(job.predicted()) / static_cast<double>(tenant.spec.weight);
  tenant.handed_out += sign * job.predicted();
}

void BatchQueue::GiveTo(Tenant& tenant, Entry* entry) {
  entry->tenant = &tenant;
  tenant.order.insert(entry);
  tenant.waiting += AmountOf(*entry->job);
}

BatchQueue::Entry* BatchQueue::Insert(JobPtr job, int64_t sequence) {
  const Request& request = job->request();
  const auto [place, added] = entries_.try_emplace(job.get());
  assert(added);
  static_cast<void>(added);
  Entry* const entry = &place->second;
  entry->job = std::move(job);
  entry->bytes = BytesOf(request);
  entry->arrival = request.arrival;
  entry->sequence = sequence;
  entry->level = StartLevel(request.priority);
  entry->deadline = request.deadline;
  entry->rises_at = request.arrival + kAgeStep;
  bytes_ += entry->bytes;
  waiting_ += AmountOf(*entry->job);
  GiveTo(TenantOf(request.caller.tenant), entry);
  arrivals_.insert(entry);
  rises_.insert(entry);
  if (request.deadline != kNever) deadlines_.insert(entry);
  return entry;
}

void BatchQueue::Add(JobPtr job) {
  Tenant& tenant = TenantOf(job->request().caller.tenant);
  if (tenant.order.empty()) tenant.start_s = std::max(tenant.start_s, virtual_s_);
  Insert(std::move(job), ++last_sequence_);
}

void BatchQueue::AddBack(const std::vector<JobPtr>& jobs) {
  ends_at_ = TimePoint::min();
  for (auto job = jobs.rbegin(); job != jobs.rend(); ++job) {
    const Entry* const entry = Insert(*job, --first_sequence_);
    Charge(*entry->tenant, *entry->job, -1);
  }
}

JobPtr BatchQueue::Extract(Entry* entry) {
  Tenant& tenant = *entry->tenant;
  tenant.order.erase(entry);
  arrivals_.erase(entry);
  rises_.erase(entry);
  deadlines_.erase(entry);
  bytes_ -= entry->bytes;
  JobPtr job = std::move(entry->job);
  for (Amount* const waiting : {&waiting_, &tenant.waiting}) *waiting -= AmountOf(*job);
  entries_.erase(job.get());
  return job;
}

JobPtr BatchQueue::Remove(const Job& job) {
  const auto found = entries_.find(&job);
  JobPtr removed = found == entries_.end() ? nullptr : Extract(&found->second);
  if (empty()) taken_at_ = kNever;
  return removed;
}

std::vector<JobPtr> BatchQueue::TakeExpired(TimePoint now) {
  std::vector<JobPtr> expired;
  while (EarliestDeadline() <= now) expired.push_back(Extract(*deadlines_.begin()));
  if (empty()) taken_at_ = kNever;
  return expired;
}

std::vector<JobPtr> BatchQueue::TakeAll() {
  std::vector<JobPtr> all;
  all.reserve(entries_.size());
  while (!empty()) all.push_back(Extract(*arrivals_.begin()));
  taken_at_ = kNever;
  return all;
}

TimePoint BatchQueue::BatchDue() const {
  if (empty()) return kNever;
  if (requests() >= options_.max_batch_problems || bytes_ >= options_.max_batch_bytes ||
      predicted() >= max_batch_time_) {
    return TimePoint::min();
  }
  return (*arrivals_.begin())->arrival + microseconds(options_.max_batch_delay_us);
}

void BatchQueue::Age(TimePoint now) {
  while (!rises_.empty() && (*rises_.begin())->rises_at <= now) {
    Entry* const entry = *rises_.begin();
    std::set<Entry*, InOrder>& order = entry->tenant->order;
    order.erase(entry);
    rises_.erase(entry);
    --entry->level;
    if (entry->level > 0) {
      entry->rises_at += kAgeStep;
      rises_.insert(entry);
    } else {
      entry->rises_at = kNever;
      entry->deadline = TimePoint::min();
    }
    order.insert(entry);
  }
}

BatchQueue::Entry* BatchQueue::Next(Duration longest) const {
  Entry* next = nullptr;
  for (const auto& [name, tenant] : tenants_) {
    if (next != nullptr && tenant->start_s >= next->tenant->start_s) continue;
    const auto entry = std::find_if(tenant->order.begin(), tenant->order.end(),
                                    [&](const Entry* e) { return e->job->predicted() <= longest; });
    if (entry != tenant->order.end()) next = *entry;
  }
  return next;
}

std::vector<JobPtr> BatchQueue::TakeBatch(TimePoint now, Duration longest) {
  Age(now);
  std::vector<JobPtr> jobs;
  int64_t batch_bytes = 0;
  Duration predicted{};
  Duration taken{};
  while (static_cast<int64_t>(jobs.size()) < options_.max_batch_problems) {
    Entry* const entry = Next(longest);
    if (entry == nullptr) break;
    batch_bytes += entry->bytes;
    predicted += entry->job->predicted();
    const bool fits = batch_bytes <= options_.max_batch_bytes && predicted <= max_batch_time_;
    if (!jobs.empty() && !fits) break;
    virtual_s_ = std::max(virtual_s_, entry->tenant->start_s);
    Charge(*entry->tenant, *entry->job, 1);
    taken += entry->job->predicted();
    jobs.push_back(Extract(entry));
  }
  if (jobs.empty()) return jobs;
  LearnPace(now, taken);
  // Short ones come between the slices of what runs, whose end they put off.
  const bool between_slices = longest < Duration::max();
  ends_at_ = (between_slices ? std::max(ends_at_, now) : now) + AtPace(taken);
  return jobs;
}

void BatchQueue::LearnPace(TimePoint now, Duration taken) {
  if (taken_at_ != kNever) {
    predicted_lately_s_ = predicted_lately_s_ * kPaceKept + ToSeconds(taken_);
    passed_lately_s_ = passed_lately_s_ * kPaceKept + ToSeconds(now - taken_at_);
  }
  taken_at_ = empty() ? kNever : now;
  taken_ = taken;
}

Duration BatchQueue::AtPace(Duration predicted) const {
  if (predicted_lately_s_ <= 0) return predicted;
  const double pace = std::clamp(passed_lately_s_ / predicted_lately_s_, 1.0, kSlowestPace);
  return std::chrono::duration_cast<Duration>(predicted * pace);
}

Duration BatchQueue::RunsFor(TimePoint now) const {
  return ends_at_ <= now ? Duration::zero() : ends_at_ - now;
}

std::vector<TenantFacts> BatchQueue::tenants() {
  std::vector<TenantFacts> all;
  for (const auto& [name, tenant] : tenants_) {
    tenant->shown = std::max(tenant->shown, tenant->handed_out);
    all.push_back({name, tenant->waiting.requests, tenant->shown});
  }
  return all;
}

TimePoint BatchQueue::EarliestDeadline() const {
  return deadlines_.empty() ? kNever : (*deadlines_.begin())->job->request().deadline;
}

}  // namespace attnd::server
