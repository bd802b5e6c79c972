#include "server/services/deadline_watch.h"

namespace attnd::server {

DeadlineWatch::~DeadlineWatch() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

DeadlineWatch::Entry DeadlineWatch::Add(TimePoint when, std::function<void()> passed) {
  MutexLock lock(mutex_);
  const Entry entry({when, ++last_number_});
  entries_.emplace(entry.key_, std::move(passed));
  if (when < wakes_at_) changed_.NotifyAll();
  return entry;
}

void DeadlineWatch::TakeBack(const Entry& entry) {
  std::function<void()> dropped;  // with no lock held: it may own a call
  MutexLock lock(mutex_);
  const auto found = entries_.find(entry.key_);
  if (found == entries_.end()) return;
  dropped = std::move(found->second);
  entries_.erase(found);
}

void DeadlineWatch::Watch() {
  for (;;) {
    std::function<void()> passed;
    {
      MutexLock lock(mutex_);
      if (ending_) return;
      const TimePoint first = entries_.empty() ? kNever : entries_.begin()->first.first;
      if (first > clock_->Now()) {
        wakes_at_ = first;
        clock_->WaitUntil(changed_, mutex_, first);
        wakes_at_ = TimePoint::min();  // it looks before it sleeps again
        continue;
      }
      passed = std::move(entries_.begin()->second);
      entries_.erase(entries_.begin());
    }
    passed();
  }
}

}  // namespace attnd::server
