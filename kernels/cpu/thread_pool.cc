#include "kernels/cpu/thread_pool.h"

#include <algorithm>
#include <system_error>

namespace attnd::kernels::cpu {
namespace {

using Clock = std::chrono::steady_clock;

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
  // All before the first thread, which may look at the others.
  for (int i = 1; i < threads; ++i) helpers_.push_back(std::make_unique<Helper>());
  for (int worker = 1; worker < threads; ++worker) {
    try {
      HelperOf(worker).thread = std::thread([this, worker] { Help(worker); });
    } catch (const std::system_error&) {
      // The limit on threads: what has started is enough to be right.
      helpers_.resize(static_cast<size_t>(worker) - 1);
      return;
    }
  }
}

ThreadPool::~ThreadPool() {
  for (const auto& helper : helpers_) {
    helper->state = State::kEnding;
    Wake(*helper);
  }
  for (const auto& helper : helpers_) helper->thread.join();
}

void ThreadPool::Run(int workers, absl::FunctionRef<void(int)> body) {
  if (workers == 1) return body(0);
  body_ = &body;
  workers_ = workers;
  wakes_ = false;
  // Last the first, which wake the others.
  for (int worker = workers - 1; worker > 0; --worker) Call(HelperOf(worker));
  if (wakes_) WakeNext(0);
  body(0);
  for (int worker = 1; worker < workers; ++worker) {
    if (HasBegun(HelperOf(worker))) AwaitEnd(HelperOf(worker));
  }
}

void ThreadPool::Call(Helper& helper) {
  helper.was_asleep = helper.state.exchange(State::kCalled) == State::kAsleep;
  helper.to_be_woken = helper.was_asleep;
  if (helper.was_asleep) wakes_ = true;
}

// Two of them: 1 and 2 after 0, 3 and 4 after 1, 5 and 6 after 2.
void ThreadPool::WakeNext(int worker) {
  for (int next = 2 * worker + 1; next <= 2 * worker + 2 && next < workers_; ++next) {
    if (HelperOf(next).to_be_woken.exchange(false)) Wake(HelperOf(next));
  }
}

// Its state was changed before: whoever goes to sleep looks at it under the mutex.
void ThreadPool::Wake(Helper& helper) {
  { MutexLock lock(helper.mutex); }
  helper.called.NotifyOne();
}

bool ThreadPool::HasBegun(Helper& helper) {
  State called = State::kCalled;
  return !helper.state.compare_exchange_strong(
      called, helper.was_asleep ? State::kAsleep : State::kLooking);
}

void ThreadPool::AwaitEnd(const Helper& helper) {
  const auto ended = [&] { return helper.state.load() != State::kAtWork; };
  if (SpinUntil(spin_, ended)) return;
  MutexLock lock(mutex_);
  awaiting_ = true;
  while (!ended()) done_.Wait(mutex_);
  awaiting_ = false;
}

bool ThreadPool::AwaitCall(Helper& helper) {
  for (;;) {
    SpinUntil(spin_, [&] { return helper.state.load() != State::kLooking; });
    State looking = State::kLooking;
    if (helper.state.compare_exchange_strong(looking, State::kAsleep) ||
        looking == State::kAsleep) {  // by a call that was taken back
      MutexLock lock(helper.mutex);
      while (helper.state.load() == State::kAsleep) helper.called.Wait(helper.mutex);
    }
    State called = State::kCalled;
    if (helper.state.compare_exchange_strong(called, State::kAtWork)) return true;
    if (called == State::kEnding) return false;
    // The call was taken back.
  }
}

void ThreadPool::Help(int worker) {
  Helper& helper = HelperOf(worker);
  while (AwaitCall(helper)) {
    if (wakes_) WakeNext(worker);
    (*body_)(worker);
    helper.state = State::kLooking;
    if (!awaiting_) continue;
    { MutexLock lock(mutex_); }
    done_.NotifyOne();
  }
}

}  // namespace attnd::kernels::cpu
