// The door for calls: open, then shut for a drain, which waits for those inside.
#ifndef ATTND_SERVER_SERVICES_CALL_GATE_H_
#define ATTND_SERVER_SERVICES_CALL_GATE_H_

#include <cstdint>

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
    MutexLock lock(mutex_);
    shut_ = true;
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
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_CALL_GATE_H_
