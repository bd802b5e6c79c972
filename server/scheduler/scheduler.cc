#include "server/scheduler/scheduler.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/scheduler/batch_queue.h"

namespace attnd::server {
namespace {

// What a new request may wait for: those that have been handed out, one on a CPU and up to three on
// a GPU, and its own.
constexpr int kBatchesOfASlice = 4;

// What a caller may send before the server reads: HTTP/2's first window.
constexpr int64_t kFirstWindowBytes = 65535;

void FinishAll(const std::vector<JobPtr>& jobs, const absl::Status& status) {
  for (const JobPtr& job : jobs) job->Finish(status, Stage::kQueue);
}

void FinishExpired(const std::vector<JobPtr>& jobs) {
  if (jobs.empty()) return;
  FinishAll(jobs, absl::DeadlineExceededError("the deadline passed while the request was queued"));
}

}  // namespace

// Jobs leave the queue under the mutex and are finished after it, so whoever takes one out is the
// one who ends it.
class Scheduler::Impl {
 public:
  Impl(const SchedulerOptions& options, Clock* clock, Metrics* metrics)
      : options_(options),
        clock_(clock),
        metrics_(metrics),
        costs_(options.rates),
        queue_(options),
        reaper_([this] { Reap(); }) {}

  ~Impl() {
    Stop(absl::UnavailableError("the server is shutting down"));
    {
      MutexLock lock(mutex_);
      ending_ = true;
      earlier_deadline_.NotifyAll();
    }
    reaper_.join();
  }

  absl::Status Submit(JobPtr job) {
    absl::Status status = TryAdd(std::move(job));
    if (const absl::optional<Refusal> why = RefusalOf(status)) {
      metrics_->CountRefusal(*why);
      if (RetryPushbackMs(status).value_or(-1) >= 0) metrics_->CountPushback();
    }
    return status;
  }

  absl::StatusOr<uint64_t> HoldPlace(const std::string& tenant, int64_t message_bytes) {
    const TimePoint now = clock_->Now();
    MutexLock lock(mutex_);
    if (!refusal_.ok()) return refusal_;
    if (message_bytes > kFirstWindowBytes) return queue_.HoldPlace(tenant, message_bytes, now);
    if (absl::Status room = queue_.CheckRoom(tenant, message_bytes, now); !room.ok()) return room;
    return 0;
  }

  void LetGo(uint64_t place) {
    MutexLock lock(mutex_);
    queue_.LetGo(place);
  }

  absl::optional<Batch> TakeAlone(const JobPtr& job, Duration at_most) {
    if (options_.max_batch_delay_us > 0) return absl::nullopt;
    job->SetPredicted(costs_.Predict(Work(job->request())));
    if (job->predicted() > at_most) return absl::nullopt;
    MutexLock lock(mutex_);
    const TimePoint now = clock_->Now();
    if (!refusal_.ok() || !queue_.empty() || !queue_.Admit(*job, now).ok()) return absl::nullopt;
    queue_.Add(job);
    return TakeBatch(now);
  }

  void Requeue(const std::vector<JobPtr>& jobs) {
    std::vector<JobPtr> cancelled;
    std::vector<JobPtr> stopped;
    absl::Status stop_status;
    {
      MutexLock lock(mutex_);
      std::vector<JobPtr> kept;
      for (const JobPtr& job : jobs) {
        (job->cancelled() ? cancelled : stopped_ ? stopped : kept).push_back(job);
      }
      stop_status = refusal_;
      const TimePoint due_before = queue_.BatchDue();
      queue_.AddBack(kept);
      if (queue_.BatchDue() < due_before) batch_due_.NotifyAll();
      WakeReaper();
    }
    FinishAll(cancelled, absl::CancelledError("the caller cancelled"));
    FinishAll(stopped, stop_status);
  }

  absl::optional<Batch> NextBatch() {
    for (;;) {
      std::vector<JobPtr> expired;
      {
        MutexLock lock(mutex_);
        const TimePoint now = clock_->Now();
        expired = queue_.TakeExpired(now);
        if (expired.empty()) {
          const bool draining = !refusal_.ok();
          if (draining && queue_.empty()) return absl::nullopt;
          if (draining || queue_.BatchDue() <= now) return TakeBatch(now);
          clock_->WaitUntil(batch_due_, mutex_, queue_.BatchDue());
        }
      }
      FinishExpired(expired);
    }
  }

  bool draining() const {
    MutexLock lock(mutex_);
    return !refusal_.ok();
  }

  absl::optional<Batch> NextBatchBefore(TimePoint deadline, Duration longest) {
    std::vector<JobPtr> expired;
    absl::optional<Batch> batch;
    {
      MutexLock lock(mutex_);
      TimePoint now = clock_->Now();
      if (!IsDue(now) && refusal_.ok() && now < deadline) {
        clock_->WaitUntil(batch_due_, mutex_, std::min(queue_.BatchDue(), deadline));
        now = clock_->Now();
      }
      expired = queue_.TakeExpired(now);
      if (IsDue(now)) batch = TakeBatch(now, longest);
    }
    FinishExpired(expired);
    return batch;
  }

  void Cancel(const JobPtr& job) {
    // Before the lock: Submit looks at it under the lock, so either it sees this or we find the
    // job.
    job->RequestCancel();
    JobPtr queued;
    {
      MutexLock lock(mutex_);
      queued = queue_.Remove(*job);
    }
    if (queued != nullptr) {
      queued->Finish(absl::CancelledError("the caller cancelled"), Stage::kQueue);
    }
  }

  void Drain() {
    MutexLock lock(mutex_);
    if (refusal_.ok()) refusal_ = absl::UnavailableError("the server is draining");
    batch_due_.NotifyAll();
  }

  void Stop(const absl::Status& status) {
    std::vector<JobPtr> queued;
    {
      MutexLock lock(mutex_);
      if (!stopped_) refusal_ = status;
      stopped_ = true;
      queued = queue_.TakeAll();
      batch_due_.NotifyAll();
    }
    FinishAll(queued, status);
  }

  int64_t queued_requests() const {
    MutexLock lock(mutex_);
    return queue_.requests();
  }

  int64_t queued_bytes() const {
    MutexLock lock(mutex_);
    return queue_.bytes();
  }

  Duration queued_time() const {
    MutexLock lock(mutex_);
    return queue_.predicted();
  }

  std::vector<TenantFacts> tenants() {
    MutexLock lock(mutex_);
    return queue_.tenants();
  }

  void SetTenants(const std::vector<TenantSpec>& tenants) {
    MutexLock lock(mutex_);
    queue_.SetTenants(tenants);
  }

  double FillOf(const std::vector<JobPtr>& jobs) const {
    double bytes = 0;
    Duration time{};
    for (const JobPtr& job : jobs) {
      bytes += static_cast<double>(job->request().payload_bytes() + job->request().answer_bytes());
      time += job->predicted();
    }
    return std::max(
        {static_cast<double>(jobs.size()) / static_cast<double>(options_.max_batch_problems),
         bytes / static_cast<double>(options_.max_batch_bytes),
         static_cast<double>(time.count()) / static_cast<double>(MaxBatchTime(options_).count())});
  }

  Duration max_batch_time() const { return MaxBatchTime(options_); }

  CostModel& costs() { return costs_; }

 private:
  // Submit, but for counting. What takes time comes before the lock, which every call needs.
  absl::Status TryAdd(JobPtr job) {
    const Work work(job->request());
    const TimePoint now = clock_->Now();
    job->SetPredicted(costs_.Predict(work));
    const bool hopeless =
        costs_.IsHopeless(work, job->predicted(), job->request().deadline - now, now);
    bool is_due_earlier = false;
    {
      MutexLock lock(mutex_);
      if (!refusal_.ok()) {
        metrics_->CountRefusal(Refusal::kDraining);
        return refusal_;
      }
      if (absl::Status status = queue_.Admit(*job, now); !status.ok()) return status;
      if (hopeless) return Hopeless(*job, now);
      const TimePoint due_before = queue_.BatchDue();
      queue_.Add(std::move(job));
      is_due_earlier = queue_.BatchDue() < due_before;
      WakeReaper();
    }
    // Not under the lock, which the woken thread would have to wait for.
    if (is_due_earlier) batch_due_.NotifyAll();
    return absl::OkStatus();
  }

  static absl::Status Hopeless(const Job& job, TimePoint now) {
    absl::Status status = absl::DeadlineExceededError(
        absl::StrCat("the deadline is in ", ToMicroseconds(job.request().deadline - now),
                     " us, and the request takes about ", ToMicroseconds(job.predicted()),
                     " us, even on an idle device"));
    SetRefusal(status, Refusal::kHopeless);
    return status;
  }

  // If it means to sleep beyond a deadline. It is not told of deadlines that have gone: to wake
  // once too often at the time of one costs less than to be woken with every request.
  void WakeReaper() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (queue_.EarliestDeadline() < reaper_wakes_at_) earlier_deadline_.NotifyAll();
  }

  bool IsDue(TimePoint now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !queue_.empty() && (!refusal_.ok() || queue_.BatchDue() <= now);
  }

  // The queue has a batch due; there is none of requests that short if this is nullopt.
  absl::optional<Batch> TakeBatch(TimePoint now, Duration longest = Duration::max())
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Batch batch;
    batch.jobs = queue_.TakeBatch(now, longest);
    if (batch.jobs.empty()) return absl::nullopt;
    batch.id = ++last_batch_id_;
    return batch;
  }

  // The reaper's thread: ends requests at their deadlines though every executor is busy.
  void Reap() {
    for (;;) {
      std::vector<JobPtr> expired;
      {
        MutexLock lock(mutex_);
        if (ending_) return;
        expired = queue_.TakeExpired(clock_->Now());
        if (expired.empty()) {
          reaper_wakes_at_ = queue_.EarliestDeadline();
          clock_->WaitUntil(earlier_deadline_, mutex_, reaper_wakes_at_);
          reaper_wakes_at_ = TimePoint::min();  // it looks before it sleeps again
        }
      }
      FinishExpired(expired);
    }
  }

  const SchedulerOptions options_;
  Clock* const clock_;
  Metrics* const metrics_;
  CostModel costs_;

  mutable Mutex mutex_;
  CondVar batch_due_;         // a batch may be due earlier than it was
  CondVar earlier_deadline_;  // the reaper must wake earlier than it meant to
  BatchQueue queue_ ABSL_GUARDED_BY(mutex_);
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);  // OK: open; else what Submit returns
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  TimePoint reaper_wakes_at_ ABSL_GUARDED_BY(mutex_) = TimePoint::min();
  uint64_t last_batch_id_ ABSL_GUARDED_BY(mutex_) = 0;

  std::thread reaper_;  // last: starts when the rest is there
};

Duration MaxBatchTime(const SchedulerOptions& options) {
  if (options.max_slice_us == 0) return Duration::max();
  return std::max<Duration>(microseconds(options.max_slice_us) / kBatchesOfASlice, microseconds(1));
}

Scheduler::Scheduler(const SchedulerOptions& options, Clock* clock, Metrics* metrics)
    : impl_(std::make_unique<Impl>(options, clock, metrics)) {}

Scheduler::~Scheduler() = default;

QueuePlace::~QueuePlace() {
  if (scheduler_ != nullptr) scheduler_->impl_->LetGo(number_);
}

absl::Status Scheduler::Submit(JobPtr job) { return impl_->Submit(std::move(job)); }
absl::StatusOr<QueuePlace> Scheduler::HoldPlace(const std::string& tenant, int64_t message_bytes) {
  const absl::StatusOr<uint64_t> place = impl_->HoldPlace(tenant, message_bytes);
  if (!place.ok()) return place.status();
  return *place == 0 ? QueuePlace() : QueuePlace(this, *place);
}
absl::optional<Batch> Scheduler::TakeAlone(const JobPtr& job, Duration at_most) {
  return impl_->TakeAlone(job, at_most);
}
absl::optional<Batch> Scheduler::NextBatch() { return impl_->NextBatch(); }
absl::optional<Batch> Scheduler::NextBatchBefore(TimePoint deadline, Duration longest) {
  return impl_->NextBatchBefore(deadline, longest);
}
void Scheduler::Requeue(const std::vector<JobPtr>& jobs) { impl_->Requeue(jobs); }
void Scheduler::Cancel(const JobPtr& job) { impl_->Cancel(job); }
void Scheduler::Drain() { impl_->Drain(); }
bool Scheduler::draining() const { return impl_->draining(); }
void Scheduler::Stop(const absl::Status& status) { impl_->Stop(status); }
int64_t Scheduler::queued_requests() const { return impl_->queued_requests(); }
int64_t Scheduler::queued_bytes() const { return impl_->queued_bytes(); }
Duration Scheduler::queued_time() const { return impl_->queued_time(); }
std::vector<TenantFacts> Scheduler::tenants() { return impl_->tenants(); }
void Scheduler::SetTenants(const std::vector<TenantSpec>& tenants) { impl_->SetTenants(tenants); }
double Scheduler::FillOf(const std::vector<JobPtr>& jobs) const { return impl_->FillOf(jobs); }
Duration Scheduler::max_batch_time() const { return impl_->max_batch_time(); }
CostModel& Scheduler::costs() { return impl_->costs(); }

}  // namespace attnd::server
