// The door for calls: open, then shut for a drain, which waits for those inside. Whoever stands
// outside for long, to come in again and again, can be told.
#ifndef ATTND_SERVER_SERVICES_CALL_GATE_H_
#define ATTND_SERVER_SERVICES_CALL_GATE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "kernels/sync.h"
#include "server/clock.h"

namespace attnd::server {

// Thread-safe.
class CallGate {
 public:
  // False once shut; otherwise Leave() must follow.
  [[nodiscard]] bool Enter() {
    MutexLock lock(mutex_);
    if (shut_) return false;
    ++inside_;
    return true;
  }

  void Leave() {
    MutexLock lock(mutex_);
    // Under the lock: a drain that sees 0 may destroy this at once.
    if (--inside_ == 0) empty_.NotifyAll();
  }

  void Shut() {
    std::map<const void*, std::function<void()>> told;
    {
      MutexLock lock(mutex_);
      shut_ = true;
      told.swap(watchers_);
    }
    for (const auto& [who, shut] : told) shut();
  }

  // `shut` is called once, by Shut(), unless it is forgotten first; on its thread, with no lock
  // held. False, and it is never called, once shut. It may be running while it is forgotten.
  [[nodiscard]] bool Watch(const void* who, std::function<void()> shut) {
    MutexLock lock(mutex_);
    if (shut_) return false;
    watchers_[who] = std::move(shut);
    return true;
  }
  void Forget(const void* who) {
    std::function<void()> forgotten;  // destroyed with no lock held
    MutexLock lock(mutex_);
    const auto found = watchers_.find(who);
    if (found == watchers_.end()) return;
    forgotten.swap(found->second);
    watchers_.erase(found);
  }

  // True once nobody is inside, false if `deadline` passes first.
  bool WaitUntilEmpty(TimePoint deadline) {
    MutexLock lock(mutex_);
    while (inside_ > 0) {
      if (!empty_.WaitUntil(mutex_, deadline)) return inside_ == 0;
    }
    return true;
  }

  int64_t inside() const {
    MutexLock lock(mutex_);
    return inside_;
  }

 private:
  mutable Mutex mutex_;
  CondVar empty_;
  int64_t inside_ ABSL_GUARDED_BY(mutex_) = 0;
  bool shut_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<const void*, std::function<void()>> watchers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_CALL_GATE_H_
