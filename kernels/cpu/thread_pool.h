// A fixed set of threads that run one body together. For a backend's own work list: the body takes
// items from it until none is left.
#ifndef ATTND_KERNELS_CPU_THREAD_POOL_H_
#define ATTND_KERNELS_CPU_THREAD_POOL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "kernels/sync.h"

namespace attnd::kernels::cpu {

// Invariants.
//  1. Outside Run every thread sleeps, at the latest when `spin` has passed since it last worked.
//     Run wakes as many as it needs, and none for one worker; each wakes others in its turn, as to
//     wake many takes one thread longer than they have to do.
//  2. Run never waits for a thread to wake up: what the caller has finished without it, it misses.
//  3. Who looks for work is counted before it takes any: what is unclaimed beyond their number
//     needs sleepers, and no more than that is woken.
class ThreadPool {
 public:
  // `threads` >= 1 counts the caller of Run; the others are started here. Where the system refuses
  // one, the pool has fewer.
  //
  // A thread that sleeps arrives some 10 us after it was called, one that looks for work in less
  // than one. For `spin` after its last work a thread looks, keeping a processor busy, and so does
  // the caller for those that have not finished; 0: not at all.
  explicit ThreadPool(int threads, std::chrono::microseconds spin = {});
  // Nobody is in Run.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }
  bool spins() const { return spin_.count() > 0; }

  // Calls body(0) on the caller's thread and meanwhile body(worker), worker in 1 .. workers - 1,
  // on others: each number at most once, and none that has not begun when body(0) returns. Returns
  // when every call has. 1 <= workers <= threads(). By one thread at a time. The body does not
  // throw and does not call Run.
  void Run(int workers, absl::FunctionRef<void(int worker)> body) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Help() ABSL_LOCKS_EXCLUDED(mutex_);
  // A worker number, or 0 if there is none to be had.
  int Claim();
  // Likewise, for as long as threads spin.
  int ClaimSoon();
  // Likewise, after any sleep; 0 when the pool ends.
  int ClaimAtLast() ABSL_LOCKS_EXCLUDED(mutex_);
  void AwaitHelpers() ABSL_LOCKS_EXCLUDED(mutex_);
  // Two sleepers, or as many as there are numbers that nobody awake will take.
  void WakeSome(int unclaimed) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::chrono::microseconds spin_;

  // Worker numbers 1 .. the low half are to be had; the high half is the helpers inside the body.
  // In one word: a number is taken and its helper counted in one step.
  alignas(64) std::atomic<uint64_t> state_{0};
  const absl::FunctionRef<void(int)>* body_ = nullptr;  // before state_, and read after it
  alignas(64) std::atomic<int> spinning_{0};            // helpers that look for work
  std::atomic<int> sleeping_{0};                        // helpers that wait for work_
  std::atomic<bool> awaiting_{false};                   // the caller waits for done_

  Mutex mutex_;
  CondVar work_;  // state_ has numbers, or stopping_
  CondVar done_;  // state_ became 0
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> helpers_;  // last: its threads use the members above
};

}  // namespace attnd::kernels::cpu

#endif  // ATTND_KERNELS_CPU_THREAD_POOL_H_
