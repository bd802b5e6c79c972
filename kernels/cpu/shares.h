// Who of the threads of one Run computes which items of its work list: each item once.
#ifndef ATTND_KERNELS_CPU_SHARES_H_
#define ATTND_KERNELS_CPU_SHARES_H_

#include <atomic>
#include <cstdint>
#include <vector>

namespace attnd::kernels::cpu {

// Items [0, items), cut into `shares` parts of neighbours, as equal as can be; the items of a share
// are handed out in their order. A thread takes a share that nobody has begun, if there is one, and
// when it is done the items that others have left.
//
// With one share all items are handed out in their order, which longest-first lists want. With one
// for each thread, a thread whose wish is the share that it had in the last Run finds in its caches
// what it read and wrote there, if the caller's problems lie in the same memory.
//
// From any thread. shares >= 1.
class Shares {
 public:
  Shares(int64_t items, int64_t shares) : items_(items), next_(static_cast<size_t>(shares)) {
    for (int64_t share = 0; share < shares; ++share) next_[share] = Begin(share);
  }

  // A thread's first item, or -1. `share` >= 0 is its wish, and becomes what it got.
  int64_t First(int64_t& share) {
    share %= count();
    for (int64_t i = 0; i < count(); ++i, share = Following(share)) {
      int64_t item = Begin(share);
      if (item < Begin(share + 1) && next_[share].compare_exchange_strong(item, item + 1)) {
        return item;
      }
    }
    return Next(share);
  }

  // The next one, of this share or of a following one, or -1.
  int64_t Next(int64_t& share) {
    for (int64_t i = 0; i < count(); ++i, share = Following(share)) {
      const int64_t end = Begin(share + 1);
      if (next_[share].load() >= end) continue;
      if (const int64_t item = next_[share].fetch_add(1); item < end) return item;
    }
    return -1;
  }

 private:
  int64_t count() const { return static_cast<int64_t>(next_.size()); }
  int64_t Begin(int64_t share) const { return share * items_ / count(); }
  int64_t Following(int64_t share) const { return share + 1 < count() ? share + 1 : 0; }

  const int64_t items_;
  std::vector<std::atomic<int64_t>>
      next_;  // of each share; in few cache lines, as all are looked at
};

}  // namespace attnd::kernels::cpu

#endif  // ATTND_KERNELS_CPU_SHARES_H_
