#include "kernels/cpu/thread_pool.h"

#include <algorithm>
#include <system_error>

namespace attnd::kernels::cpu {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kOneRunning = uint64_t{1} << 32;
constexpr uint64_t kUnclaimedMask = kOneRunning - 1;

// The processor does something else for some 50 ns.
void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// Asks `done` again and again for that long: whether it became true.
template <typename Done>
bool SpinUntil(std::chrono::microseconds spin, Done done) {
  if (done()) return true;
  if (spin.count() == 0) return false;
  constexpr int kAsksPerLook = 8;  // at the clock
  const Clock::time_point end = Clock::now() + spin;
  do {
    for (int i = 0; i < kAsksPerLook; ++i) {
      Pause();
      if (done()) return true;
    }
  } while (Clock::now() < end);
  return false;
}

}  // namespace

ThreadPool::ThreadPool(int threads, std::chrono::microseconds spin) : spin_(spin) {
  helpers_.reserve(threads - 1);
  try {
    for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { Help(); });
  } catch (const std::system_error&) {
    // The limit on threads: what has started is enough to be right.
  }
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    work_.NotifyAll();
  }
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::Run(int workers, absl::FunctionRef<void(int)> body) {
  if (workers == 1) return body(0);
  body_ = &body;
  state_.store(static_cast<uint64_t>(workers - 1));
  WakeSome(workers - 1);
  body(0);
  state_.fetch_and(~kUnclaimedMask);
  AwaitHelpers();
}

void ThreadPool::AwaitHelpers() {
  const auto done = [this] { return state_.load() == 0; };
  if (SpinUntil(spin_, done)) return;
  MutexLock lock(mutex_);
  awaiting_ = true;
  while (!done()) done_.Wait(mutex_);
  awaiting_ = false;
}

// Whoever goes to sleep counts itself, then looks at state_; whoever changes state_ then looks at
// the count, and passes through the mutex before it notifies: no wake-up is lost.
void ThreadPool::WakeSome(int unclaimed) {
  const int needed = std::min(unclaimed - spinning_.load(), sleeping_.load());
  if (needed <= 0) return;
  { MutexLock lock(mutex_); }
  for (int i = 0; i < std::min(needed, 2); ++i) work_.NotifyOne();
}

int ThreadPool::Claim() {
  uint64_t state = state_.load();
  while ((state & kUnclaimedMask) != 0) {
    if (state_.compare_exchange_weak(state, state - 1 + kOneRunning)) {
      return static_cast<int>(state & kUnclaimedMask);
    }
  }
  return 0;
}

int ThreadPool::ClaimSoon() {
  int worker = 0;
  ++spinning_;
  SpinUntil(spin_, [&] {
    if ((state_.load() & kUnclaimedMask) == 0) return false;
    --spinning_;
    worker = Claim();
    if (worker == 0) ++spinning_;
    return worker != 0;
  });
  if (worker == 0) --spinning_;
  return worker;
}

int ThreadPool::ClaimAtLast() {
  if (const int worker = spins() ? ClaimSoon() : Claim(); worker != 0) return worker;
  MutexLock lock(mutex_);
  ++sleeping_;
  int worker = 0;
  while (!stopping_ && (worker = Claim()) == 0) work_.Wait(mutex_);
  --sleeping_;
  return worker;
}

void ThreadPool::Help() {
  while (const int worker = ClaimAtLast()) {
    WakeSome(worker - 1);
    (*body_)(worker);
    if (state_.fetch_sub(kOneRunning) != kOneRunning || !awaiting_) continue;
    { MutexLock lock(mutex_); }
    done_.NotifyOne();
  }
}

}  // namespace attnd::kernels::cpu
