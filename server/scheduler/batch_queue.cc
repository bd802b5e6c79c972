#include "server/scheduler/batch_queue.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd::server {
namespace {

int StartLevel(int priority) {
  return priority <= 0 ? kDefaultLevel : std::min(priority, kLowestLevel);
}

int64_t BytesOf(const Request& request) { return request.payload_bytes() + request.answer_bytes(); }

}  // namespace

BatchQueue::BatchQueue(const SchedulerOptions& options) : options_(options) {
  assert(options.max_queue_requests > 0 && options.max_queue_bytes > 0);
  assert(options.max_batch_problems > 0 && options.max_batch_bytes > 0);
  assert(options.max_batch_delay_us >= 0);
}

absl::Status BatchQueue::Admit(const Job& job, TimePoint now) const {
  const int64_t bytes = job.request().held_bytes();
  if (job.cancelled()) return absl::CancelledError("the caller cancelled");
  if (job.request().deadline <= now) {
    return absl::DeadlineExceededError("the deadline had passed before the request was queued");
  }
  if (bytes > options_.max_queue_bytes) {
    absl::Status status = absl::ResourceExhaustedError(
        absl::StrCat("payload and answer of ", bytes, " bytes are over max_queue_bytes ",
                     options_.max_queue_bytes));
    SetRetryPushbackMs(status, -1);
    return status;
  }
  if (requests() >= options_.max_queue_requests) {
    return absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", requests(),
                                                     " requests wait, max_queue_requests is ",
                                                     options_.max_queue_requests));
  }
  if (bytes > options_.max_queue_bytes - held_bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", held_bytes_, " bytes wait and this request has ", bytes,
                     ", max_queue_bytes is ", options_.max_queue_bytes));
  }
  return absl::OkStatus();
}

void BatchQueue::Insert(JobPtr job, int64_t sequence) {
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
  held_bytes_ += request.held_bytes();
  order_.insert(entry);
  arrivals_.insert(entry);
  rises_.insert(entry);
  if (request.deadline != kNever) deadlines_.insert(entry);
}

void BatchQueue::AddBack(const std::vector<JobPtr>& jobs) {
  for (auto job = jobs.rbegin(); job != jobs.rend(); ++job) Insert(*job, --first_sequence_);
}

JobPtr BatchQueue::Extract(Entry* entry) {
  order_.erase(entry);
  arrivals_.erase(entry);
  rises_.erase(entry);
  deadlines_.erase(entry);
  bytes_ -= entry->bytes;
  held_bytes_ -= entry->job->request().held_bytes();
  JobPtr job = std::move(entry->job);
  entries_.erase(job.get());
  return job;
}

JobPtr BatchQueue::Remove(const Job& job) {
  const auto found = entries_.find(&job);
  return found == entries_.end() ? nullptr : Extract(&found->second);
}

std::vector<JobPtr> BatchQueue::TakeExpired(TimePoint now) {
  std::vector<JobPtr> expired;
  while (EarliestDeadline() <= now) expired.push_back(Extract(*deadlines_.begin()));
  return expired;
}

std::vector<JobPtr> BatchQueue::TakeAll() {
  std::vector<JobPtr> all;
  all.reserve(entries_.size());
  while (!order_.empty()) all.push_back(Extract(*order_.begin()));
  return all;
}

TimePoint BatchQueue::BatchDue() const {
  if (empty()) return kNever;
  if (requests() >= options_.max_batch_problems || bytes_ >= options_.max_batch_bytes) {
    return TimePoint::min();
  }
  return (*arrivals_.begin())->arrival + microseconds(options_.max_batch_delay_us);
}

void BatchQueue::Age(TimePoint now) {
  while (!rises_.empty() && (*rises_.begin())->rises_at <= now) {
    Entry* const entry = *rises_.begin();
    order_.erase(entry);
    rises_.erase(entry);
    --entry->level;
    if (entry->level > 0) {
      entry->rises_at += kAgeStep;
      rises_.insert(entry);
    } else {
      entry->rises_at = kNever;
      entry->deadline = TimePoint::min();
    }
    order_.insert(entry);
  }
}

std::vector<JobPtr> BatchQueue::TakeBatch(TimePoint now) {
  Age(now);
  std::vector<JobPtr> jobs;
  int64_t batch_bytes = 0;
  while (!order_.empty() && static_cast<int64_t>(jobs.size()) < options_.max_batch_problems) {
    Entry* const entry = *order_.begin();
    if (!jobs.empty() && entry->bytes > options_.max_batch_bytes - batch_bytes) break;
    batch_bytes += entry->bytes;
    jobs.push_back(Extract(entry));
  }
  return jobs;
}

TimePoint BatchQueue::EarliestDeadline() const {
  return deadlines_.empty() ? kNever : (*deadlines_.begin())->job->request().deadline;
}

}  // namespace attnd::server
