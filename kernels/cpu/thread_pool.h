// A fixed set of threads that run one body together. For a backend's own work list: the body takes
// items from it until none is left.
#ifndef ATTND_KERNELS_CPU_THREAD_POOL_H_
#define ATTND_KERNELS_CPU_THREAD_POOL_H_

#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "kernels/sync.h"

namespace attnd::kernels::cpu {

// Invariants.
//  1. Outside Run every thread sleeps. Run wakes as many as it needs, and none for one worker; each
//     wakes others in its turn, as to wake many takes one thread longer than they have to do.
//  2. Run never waits for a thread to wake up: what the caller has finished without it, it misses.
class ThreadPool {
 public:
  // `threads` >= 1 counts the caller of Run; the others are started here. Where the system refuses
  // one, the pool has fewer.
  explicit ThreadPool(int threads);
  // Nobody is in Run.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Calls body(0) on the caller's thread and meanwhile body(worker), worker in 1 .. workers - 1,
  // on others: each number at most once, and none that has not begun when body(0) returns. Returns
  // when every call has. 1 <= workers <= threads(). By one thread at a time. The body does not
  // throw and does not call Run.
  void Run(int workers, absl::FunctionRef<void(int worker)> body) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Help() ABSL_LOCKS_EXCLUDED(mutex_);
  // Two sleepers, or as many as there are numbers left.
  void WakeSome(int unclaimed);

  Mutex mutex_;
  CondVar work_;  // unclaimed_ rose, or stopping_
  CondVar done_;  // running_ became 0
  const absl::FunctionRef<void(int)>* body_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int unclaimed_ ABSL_GUARDED_BY(mutex_) = 0;  // worker numbers 1 .. unclaimed_ are to be had
  int running_ ABSL_GUARDED_BY(mutex_) = 0;    // helpers inside the body
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> helpers_;  // last: its threads use the members above
};

}  // namespace attnd::kernels::cpu

#endif  // ATTND_KERNELS_CPU_THREAD_POOL_H_
