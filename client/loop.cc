#include "client/loop.h"

#include <utility>

namespace attnd::client {

Loop::Loop() : thread_([this] { Run(); }) {}

Loop::~Loop() { Stop(); }

void Loop::PostAt(TimePoint when, std::function<void()> function) {
  MutexLock lock(mutex_);
  if (stopped_) return;
  waiting_.emplace(when, std::move(function));
  changed_.NotifyOne();
}

void Loop::Stop() {
  std::multimap<TimePoint, std::function<void()>> dropped;  // destroyed with no lock held
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    dropped.swap(waiting_);
    changed_.NotifyOne();
  }
  if (thread_.joinable()) thread_.join();
}

void Loop::Run() {
  for (;;) {
    std::function<void()> function;
    {
      MutexLock lock(mutex_);
      while (!stopped_) {
        if (waiting_.empty()) {
          changed_.Wait(mutex_);
        } else if (waiting_.begin()->first > std::chrono::steady_clock::now()) {
          changed_.WaitUntil(mutex_, waiting_.begin()->first);
        } else {
          break;
        }
      }
      if (stopped_) return;
      function = std::move(waiting_.begin()->second);
      waiting_.erase(waiting_.begin());
    }
    function();
  }
}

}  // namespace attnd::client
