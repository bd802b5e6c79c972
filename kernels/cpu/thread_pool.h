// A fixed set of threads that run one body together. For a backend's own work list: the body takes
// items from it until none is left.
#ifndef ATTND_KERNELS_CPU_THREAD_POOL_H_
#define ATTND_KERNELS_CPU_THREAD_POOL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "kernels/sync.h"

namespace attnd::kernels::cpu {

// Invariants.
//  1. Outside Run every thread sleeps, at the latest when `spin` has passed since it was called.
//     Run wakes those that it needs, and none for one worker; each wakes others in its turn, as to
//     wake many takes one thread longer than they have to do.
//  2. Run never waits for a thread to wake up: what the caller has finished without it, it misses.
//  3. A worker's number is a thread's own, and so is the cache line that it looks at: many that
//     look for work do not get in each other's way, and each finds in its caches what it had in
//     the last Run.
class ThreadPool {
 public:
  // `threads` >= 1 counts the caller of Run; the others are started here. Where the system refuses
  // one, the pool has fewer.
  //
  // A thread that sleeps arrives some 10 us after it was called, one that looks for work in less
  // than one. For `spin` after its last call a thread looks, keeping a processor busy, and so does
  // the caller for those that have not finished; 0: not at all.
  explicit ThreadPool(int threads, std::chrono::microseconds spin = {});
  // Nobody is in Run.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }
  bool spins() const { return spin_.count() > 0; }

  // Calls body(0) on the caller's thread and meanwhile body(worker), worker in 1 .. workers - 1,
  // on others, each its own: each number at most once, and none that has not begun when body(0)
  // returns. Returns when every call has. 1 <= workers <= threads(). By one thread at a time. The
  // body does not throw and does not call Run.
  void Run(int workers, absl::FunctionRef<void(int worker)> body) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  enum class State : uint32_t {
    kLooking,  // for work
    kAsleep,
    kCalled,  // to work; until it has begun, Run may take that back
    kAtWork,
    kEnding,
  };

  struct alignas(64) Helper {
    std::atomic<State> state{State::kLooking};
    std::atomic<bool> to_be_woken{false};  // by who comes before it (WakeNext)
    bool was_asleep = false;               // when it was called; Run's alone
    Mutex mutex;
    CondVar called;  // state is not kAsleep any more
    std::thread thread;
  };

  Helper& HelperOf(int worker) { return *helpers_[static_cast<size_t>(worker) - 1]; }
  void Help(int worker) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns at work, or false when the pool ends.
  bool AwaitCall(Helper& helper);
  void Call(Helper& helper);
  void WakeNext(int worker);
  void Wake(Helper& helper);
  // Takes the call back if the helper has not begun; whether it had.
  bool HasBegun(Helper& helper);
  void AwaitEnd(const Helper& helper) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::chrono::microseconds spin_;
  // Of the Run under way; written before a helper is called, and read after it.
  const absl::FunctionRef<void(int)>* body_ = nullptr;
  int workers_ = 0;
  // Somebody who was called was asleep; who works knows it of all that come after it.
  std::atomic<bool> wakes_{false};

  std::atomic<bool> awaiting_{false};  // the caller waits for done_
  Mutex mutex_;
  CondVar done_;  // a helper is not at work any more
  std::vector<std::unique_ptr<Helper>> helpers_;
};

}  // namespace attnd::kernels::cpu

#endif  // ATTND_KERNELS_CPU_THREAD_POOL_H_
