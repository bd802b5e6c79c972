#include "server/services/io_lane.h"

#include <grpcpp/alarm.h>
#include <pthread.h>
#include <time.h>

#include <utility>

#include "server/services/raw_call.h"

namespace attnd::server {
namespace {

// Who stands in looks so often whether the lane's own thread is back, ...
constexpr int64_t kLookMs = 2;
// ... and leaves then in any case: that thread may be back and have nothing to do.
constexpr std::chrono::milliseconds kStandIn(10);

// gRPC hands out what has come within so long (8 to 21 us when nothing of it is in a cache), and
// looks for more only when nothing is left.
constexpr std::chrono::microseconds kAtOnce(50);
// Without looking for more, which is what others may wait for.
constexpr std::chrono::milliseconds kMostAtWork(1);

TimePoint Now() { return std::chrono::steady_clock::now(); }

// Wakes one who waits for the queue.
class Wake final : public Completion {
 public:
  explicit Wake(IoLane::Queue* queue) {
    alarm_.Set(queue, gpr_inf_past(GPR_CLOCK_MONOTONIC), NewTag());
  }
  void Complete(bool) override { delete this; }

 private:
  grpc::Alarm alarm_;
};

// Answers wait no longer for others to go with them, but for the event that is being handled.
constexpr std::chrono::microseconds kMostPutOff(200);

thread_local IoLane* lane_of_this_thread = nullptr;
thread_local bool is_own_thread = false;
// When this thread last had nothing to do, if it serves a lane.
thread_local TimePoint last_idle{};

}  // namespace

IoLane::IoLane(std::unique_ptr<Queue> queue, std::chrono::microseconds busy_poll)
    : queue_(std::move(queue)), busy_poll_(busy_poll) {}

void IoLane::Start() {
  thread_ = std::thread([this] { Serve(); });
}

void IoLane::Join() {
  queue_->Shutdown();
  thread_.joinable() ? thread_.join() : Serve();
}

void IoLane::Serve() {
  lane_of_this_thread = this;
  is_own_thread = true;
  last_idle = Now();
  void* tag = nullptr;
  bool ok = false;
  while (Next(&tag, &ok)) {
    own_turns_.fetch_add(1, std::memory_order_relaxed);
    Completion::Of(tag).Complete(ok);
    own_turns_.fetch_add(1, std::memory_order_relaxed);
  }
  lane_of_this_thread = nullptr;
  is_own_thread = false;
}

bool IoLane::PutOff(std::function<void()> send) {
  if (!is_own_thread || expected_ <= 0) return false;
  MutexLock lock(mutex_);
  if (put_off_.empty()) put_off_until_ = Now() + kMostPutOff;
  put_off_.push_back(std::move(send));
  return true;
}

void IoLane::SendPutOff() {
  std::vector<std::function<void()>> sends;
  {
    MutexLock lock(mutex_);
    sends.swap(put_off_);
  }
  for (const auto& send : sends) send();
}

bool IoLane::NextBeforeSending(void** tag, bool* ok) {
  {
    MutexLock lock(mutex_);
    if (put_off_.empty()) return false;
  }
  if (expected_ > 0 && Now() < put_off_until_ &&
      queue_->AsyncNext(tag, ok, gpr_inf_past(GPR_CLOCK_MONOTONIC)) == Queue::GOT_EVENT) {
    return true;
  }
  SendPutOff();
  return false;
}

bool IoLane::Next(void** tag, bool* ok) {
  if (NextBeforeSending(tag, ok)) return true;
  const TimePoint begun = Now();
  TimePoint now = begun;
  while (now < begun + busy_poll_) {
    const Queue::NextStatus next = queue_->AsyncNext(tag, ok, gpr_inf_past(GPR_CLOCK_MONOTONIC));
    if (next != Queue::TIMEOUT) return next == Queue::GOT_EVENT;
    own_turns_.fetch_add(1, std::memory_order_relaxed);
    now = last_idle = Now();
  }
  const bool has_ended = !queue_->Next(tag, ok);
  now = Now();
  if (now > begun + kAtOnce) last_idle = now;
  return !has_ended;
}

IoLane* IoLane::OfThisThread() { return lane_of_this_thread; }

bool IoLane::HasTime() { return !IsServing() || Now() < last_idle + kMostAtWork; }

IoLane::Seen IoLane::Glance(TimePoint now) {
  const uint64_t turns = own_turns_ + other_turns_;
  const Duration processor_time = ProcessorTime();
  const bool came_back = turns != std::exchange(seen_turns_, turns);
  const Duration passed = now - std::exchange(seen_at_, now);
  const Duration worked = processor_time - std::exchange(seen_processor_time_, processor_time);
  if (came_back) return Seen::kServed;
  // A quarter, as it may share its processor; a thread that waits has next to none.
  return worked >= passed / 4 ? Seen::kLeftAlone : Seen::kIdle;
}

void IoLane::StandIn() {
  const uint64_t away_since = own_turns_;
  const TimePoint end = Now() + kStandIn;
  lane_of_this_thread = this;
  last_idle = Now();
  SendPutOff();
  void* tag = nullptr;
  bool ok = false;
  while (own_turns_ == away_since && Now() < end) {
    const gpr_timespec soon =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(kLookMs, GPR_TIMESPAN));
    const TimePoint begun = Now();
    const Queue::NextStatus next = queue_->AsyncNext(&tag, &ok, soon);
    if (next == Queue::SHUTDOWN) {
      lane_of_this_thread = nullptr;
      return;
    }
    if (const TimePoint now = Now(); now > begun + kAtOnce) last_idle = now;
    other_turns_.fetch_add(1, std::memory_order_relaxed);
    if (next == Queue::GOT_EVENT) Completion::Of(tag).Complete(ok);
  }
  lane_of_this_thread = nullptr;
  // Connections that came to the queue meanwhile are unknown to the lane's own thread if that one
  // waits: gRPC tells one of those who wait, or none if the connection was accepted here.
  new Wake(queue_.get());
}

// Of the lane's own thread.
Duration IoLane::ProcessorTime() const {
  clockid_t clock{};
  timespec time{};
  // Neither fails for a thread that runs.
  if (pthread_getcpuclockid(const_cast<std::thread&>(thread_).native_handle(), &clock) != 0 ||
      clock_gettime(clock, &time) != 0) {
    return Duration();
  }
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace attnd::server
