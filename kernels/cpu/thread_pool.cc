#include "kernels/cpu/thread_pool.h"

#include <algorithm>
#include <system_error>

namespace attnd::kernels::cpu {

ThreadPool::ThreadPool(int threads) {
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
  {
    MutexLock lock(mutex_);
    body_ = &body;
    unclaimed_ = workers - 1;
  }
  WakeSome(workers - 1);
  body(0);
  MutexLock lock(mutex_);
  unclaimed_ = 0;
  while (running_ > 0) done_.Wait(mutex_);
}

void ThreadPool::WakeSome(int unclaimed) {
  for (int i = 0; i < std::min(unclaimed, 2); ++i) work_.NotifyOne();
}

void ThreadPool::Help() {
  while (true) {
    int worker = 0;
    const absl::FunctionRef<void(int)>* body = nullptr;
    {
      MutexLock lock(mutex_);
      while (!stopping_ && unclaimed_ == 0) work_.Wait(mutex_);
      if (stopping_) return;
      worker = unclaimed_--;
      body = body_;
      ++running_;
    }
    WakeSome(worker - 1);
    (*body)(worker);
    MutexLock lock(mutex_);
    if (--running_ == 0) done_.NotifyOne();
  }
}

}  // namespace attnd::kernels::cpu
