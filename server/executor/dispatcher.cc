#include "server/executor/dispatcher.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd::server {
namespace {

// What a request costs that computes next to nothing: launches, copies, its way through the queue.
constexpr double kLeastWork = 1e6;

double WorkOf(const Request& request) {
  double work = kLeastWork;
  for (const ProblemSlot& slot : request.problems) work += kernels::Flops(slot.problem);
  return work;
}

absl::Status SupportsAll(const Device& device, const Request& request) {
  for (const ProblemSlot& slot : request.problems) {
    if (absl::Status status = device.Supports(slot.problem); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

void RateEstimate::Busy(TimePoint now) {
  since_ = now;
  work_ = 0;
}

void RateEstimate::Done(TimePoint now, double work) {
  work_ += work;
  const Duration stretch = now - since_;
  if (stretch < kStretch) return;
  const double sample = work_ / std::chrono::duration<double>(stretch).count();
  // Weight 1/8: a few stretches settle it, an odd one does not upset it.
  per_second_ = per_second_ == 0 ? sample : per_second_ + (sample - per_second_) / 8;
  Busy(now);
}

// What each lane has to do, and how fast it is.
class Dispatcher::Load {
 public:
  explicit Load(const std::vector<Lane>& lanes) : lanes_(lanes.size()) {
    for (size_t i = 0; i < lanes.size(); ++i) {
      const DeviceDescription& device = lanes[i].device->Describe();
      lanes_[i].kind = absl::StrCat(device.name, " with ", device.backend);
    }
  }

  // The best of `able`, to which the work is then counted.
  size_t Choose(const std::vector<size_t>& able, double work, TimePoint now) {
    MutexLock lock(mutex_);
    const double fastest = FastestOf(nullptr);
    const auto finish = [&](size_t i) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      const double known = FastestOf(&lanes_[i].kind);
      const double rate = known > 0 ? known : fastest > 0 ? fastest : 1;
      // Of equals, such as idle ones, that which has been given less so far.
      return std::make_pair((lanes_[i].work + work) / rate, lanes_[i].given);
    };
    const size_t best = *std::min_element(
        able.begin(), able.end(), [&](size_t a, size_t b) { return finish(a) < finish(b); });
    LaneLoad& lane = lanes_[best];
    if (lane.jobs++ == 0) lane.rate.Busy(now);
    lane.work += work;
    lane.given += work;
    return best;
  }

  void Ended(size_t i, double work, TimePoint now) {
    MutexLock lock(mutex_);
    LaneLoad& lane = lanes_[i];
    lane.rate.Done(now, work);
    lane.work = --lane.jobs == 0 ? 0 : lane.work - work;  // no rounding is left behind
  }

 private:
  // Of this kind, or of all. A lane that is seldom full shows less than it can do, and would get
  // less for it, for good: what one shows, all of its kind can.
  double FastestOf(const std::string* kind) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    double fastest = 0;
    for (const LaneLoad& lane : lanes_) {
      if (kind == nullptr || lane.kind == *kind) {
        fastest = std::max(fastest, lane.rate.per_second());
      }
    }
    return fastest;
  }

  struct LaneLoad {
    std::string kind;
    double work = 0;   // that it has
    double given = 0;  // since the start
    int64_t jobs = 0;
    RateEstimate rate;
  };
  Mutex mutex_;
  std::vector<LaneLoad> lanes_ ABSL_GUARDED_BY(mutex_);
};

Dispatcher::Dispatcher(std::vector<Lane> lanes, Clock* clock)
    : lanes_(std::move(lanes)), clock_(clock), load_(std::make_shared<Load>(lanes_)) {}

Dispatcher::~Dispatcher() = default;

absl::Status Dispatcher::Supports(const kernels::AttentionProblem& problem) const {
  const absl::Status first = lanes_[0].device->Supports(problem);
  if (first.ok()) return first;
  const bool another = std::any_of(lanes_.begin() + 1, lanes_.end(), [&](const Lane& lane) {
    return lane.device->Supports(problem).ok();
  });
  return another ? absl::OkStatus() : first;
}

absl::Status Dispatcher::Submit(const JobPtr& job, Duration most_here) {
  if (lanes_.size() == 1) {
    const Lane& lane = lanes_[0];
    if (lane.executor != nullptr && lane.executor->RunHere(job, most_here)) {
      return absl::OkStatus();
    }
    return lane.scheduler->Submit(job);
  }
  std::vector<size_t> able;
  absl::Status why_not;
  const int only = job->request().gpu.device;  // whose memory has some of the tensors
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (only != GpuTensors::kNoDevice && static_cast<size_t>(only) != i) continue;
    const absl::Status status = SupportsAll(*lanes_[i].device, job->request());
    if (status.ok()) able.push_back(i);
    why_not.Update(status);
  }
  if (able.empty()) return why_not;
  const double work = WorkOf(job->request());
  const size_t lane = load_->Choose(able, work, clock_->Now());
  job->SetAtEnd(
      [load = load_, clock = clock_, lane, work] { load->Ended(lane, work, clock->Now()); });
  return lanes_[lane].scheduler->Submit(job);
}

absl::StatusOr<QueuePlace> Dispatcher::HoldPlace(const std::string& tenant,
                                                 int64_t message_bytes) const {
  absl::Status first;
  for (const Lane& lane : lanes_) {
    absl::StatusOr<QueuePlace> place = lane.scheduler->HoldPlace(tenant, message_bytes);
    if (place.ok()) return place;
    first.Update(place.status());
  }
  return first;
}

void Dispatcher::Cancel(const JobPtr& job) {
  for (const Lane& lane : lanes_) lane.scheduler->Cancel(job);
}

}  // namespace attnd::server
