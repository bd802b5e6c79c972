// What a test's threads wait for.
#ifndef ATTND_TESTS_FAKES_GATE_H_
#define ATTND_TESTS_FAKES_GATE_H_

#include "kernels/sync.h"

namespace attnd::fakes {

// Opened once; until then, Wait() blocks. Any thread.
class Gate {
 public:
  void Open() {
    MutexLock lock(mutex_);
    open_ = true;
    opened_.NotifyAll();
  }
  void Wait() {
    MutexLock lock(mutex_);
    while (!open_) opened_.Wait(mutex_);
  }
  bool is_open() {
    MutexLock lock(mutex_);
    return open_;
  }

 private:
  Mutex mutex_;
  CondVar opened_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace attnd::fakes

#endif  // ATTND_TESTS_FAKES_GATE_H_
