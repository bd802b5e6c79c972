// Counters of one family, found by an index instead of a search for their labels.
#ifndef ATTND_SERVER_METRICS_COUNTER_CELLS_H_
#define ATTND_SERVER_METRICS_COUNTER_CELLS_H_

#include <prometheus/counter.h>
#include <prometheus/family.h>

#include <array>
#include <atomic>
#include <cstddef>

namespace attnd::server {

// A counter is made when it first counts, so that only what there was is shown. Every call counts
// several times: a search takes a lock, and memory for the labels. Thread-safe.
template <size_t n>
class CounterCells {
 public:
  explicit CounterCells(prometheus::Family<prometheus::Counter>& family) : family_(family) {}

  // `labels()` gives those of the cell, always the same.
  template <typename Labels>
  void Add(size_t cell, double by, const Labels& labels) {
    prometheus::Counter* counter = cells_[cell].load(std::memory_order_acquire);
    if (counter == nullptr) {
      counter = &family_.Add(labels());
      cells_[cell].store(counter, std::memory_order_release);
    }
    counter->Increment(by);
  }

 private:
  prometheus::Family<prometheus::Counter>& family_;
  std::array<std::atomic<prometheus::Counter*>, n> cells_{};
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_METRICS_COUNTER_CELLS_H_
