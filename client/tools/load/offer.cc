#include "client/tools/load/offer.h"

#include <sys/prctl.h>

#include <random>
#include <utility>

namespace attnd::tools {
namespace {

using Clock = std::chrono::steady_clock;

// A caller that a dead server refuses at once does not spin.
constexpr std::chrono::milliseconds kPauseAfterFailure{10};

// As late as the kernel can, not the 50 us more that it may by default.
void WakeUpOnTime() { prctl(PR_SET_TIMERSLACK, 1000 /* ns */); }

}  // namespace

// Where a caller waits for its call, which may end after the caller.
class Offer::Slot {
 public:
  void Begin() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    ended_ = false;
  }
  void End(bool answered) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    ended_ = true;
    answered_ = answered;
    changed_.NotifyOne();
  }
  // The caller need not wait any more.
  void Abandon() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    abandoned_ = true;
    changed_.NotifyOne();
  }
  // Whether there was an answer.
  bool Wait() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    while (!ended_ && !abandoned_) changed_.Wait(mutex_);
    return ended_ && answered_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool answered_ ABSL_GUARDED_BY(mutex_) = false;
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
};

Offer::Offer(const StepSpec& spec, const StepOptions& options, const Work& work, Flights& flights,
             Recorder& recorder, TimePoint start)
    : work_(work),
      flights_(flights),
      recorder_(recorder),
      start_(start),
      seed_(options.flights.seed),
      ends_by_itself_(spec.mode == StepSpec::Mode::kTrace) {
  if (spec.mode == StepSpec::Mode::kOpen) {
    arrivals_ = ArrivalsAtRate(spec.rate, options.warmup, options.duration, work, seed_);
  } else if (spec.mode == StepSpec::Mode::kTrace) {
    arrivals_ = ArrivalsOfTrace(*spec.trace, spec.speed, options.duration);
  } else {
    for (int64_t i = 0; i < spec.concurrency; ++i) slots_.push_back(std::make_shared<Slot>());
  }
  const size_t count = slots_.empty() ? options.senders : slots_.size();
  running_ = static_cast<int64_t>(count);
  for (size_t number = 0; number < count; ++number) {
    threads_.emplace_back([this, number] {
      if (slots_.empty()) {
        RunSender();
      } else {
        RunCaller(slots_[number], number);
      }
      MutexLock lock(mutex_);
      --running_;
      changed_.NotifyAll();
    });
  }
}

Offer::~Offer() { Stop(TimePoint::min()); }

void Offer::RunCaller(std::shared_ptr<Slot> slot, size_t number) {
  std::mt19937_64 random(static_cast<uint64_t>(seed_) ^ (uint64_t{number} << 32));
  while (SleepUntil(start_)) {
    slot->Begin();
    if (!flights_.Start(work_.Pick(random), Clock::now(),
                        [slot](bool answered) { slot->End(answered); })) {
      return;
    }
    if (!slot->Wait() && !SleepUntil(Clock::now() + kPauseAfterFailure)) return;
  }
}

void Offer::RunSender() {
  WakeUpOnTime();
  while (const absl::optional<Arrival> arrival = NextArrival()) {
    const TimePoint due = start_ + absl::ToChronoNanoseconds(arrival->at);
    const bool in_time = SleepUntil(due);
    if (in_time && flights_.Start(arrival->kind, due, nullptr)) continue;
    // One that was due in the future is nobody's fault.
    if (due >= Clock::now()) return;
    MutexLock lock(mutex_);
    ++unsent_;
    return;
  }
}

absl::optional<Arrival> Offer::NextArrival() {
  MutexLock lock(mutex_);
  if (stopped_) return absl::nullopt;
  return arrivals_->Next();
}

bool Offer::SleepUntil(TimePoint when) {
  MutexLock lock(mutex_);
  while (!stopped_ && Clock::now() < when) changed_.WaitUntil(mutex_, when);
  return !stopped_;
}

bool Offer::WaitUntil(TimePoint when) {
  MutexLock lock(mutex_);
  const auto goes_on = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return running_ > 0 || !ends_by_itself_;
  };
  while (goes_on() && Clock::now() < when) changed_.WaitUntil(mutex_, when);
  return goes_on();
}

void Offer::Stop(TimePoint now) {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  flights_.Close();
  for (const std::shared_ptr<Slot>& slot : slots_) slot->Abandon();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  MutexLock lock(mutex_);
  while (arrivals_ != nullptr) {
    const absl::optional<Arrival> arrival = arrivals_->Next();
    if (!arrival || start_ + absl::ToChronoNanoseconds(arrival->at) > now) break;
    ++unsent_;
  }
  for (; unsent_ > 0; --unsent_) recorder_.Unsent();
}

}  // namespace attnd::tools
