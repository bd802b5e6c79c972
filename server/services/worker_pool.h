// A few threads for work that must not run on gRPC's own.
#ifndef ATTND_SERVER_SERVICES_WORKER_POOL_H_
#define ATTND_SERVER_SERVICES_WORKER_POOL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/sync.h"

namespace attnd::server {

// Tasks start in the order they came. Thread-safe.
class WorkerPool {
 public:
  // `threads` > 0; at most `max_waiting` > 0 tasks wait for one.
  WorkerPool(int threads, int64_t max_waiting);
  // Runs what is still waiting, then joins.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // False, and the task is dropped, when max_waiting tasks wait already.
  [[nodiscard]] bool TryPost(std::function<void()> task);

 private:
  void Work();

  const int64_t max_waiting_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // last: they use the rest
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_WORKER_POOL_H_
