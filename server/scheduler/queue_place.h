// A place in a queue for a request whose message is on its way.
#ifndef ATTND_SERVER_SCHEDULER_QUEUE_PLACE_H_
#define ATTND_SERVER_SCHEDULER_QUEUE_PLACE_H_

#include <cstdint>
#include <utility>

namespace attnd::server {

class Scheduler;

// Held until it is destroyed, which the scheduler outlives. The empty place is none.
class QueuePlace {
 public:
  QueuePlace() = default;
  QueuePlace(Scheduler* scheduler, uint64_t number) : scheduler_(scheduler), number_(number) {}
  QueuePlace(QueuePlace&& other) noexcept
      : scheduler_(std::exchange(other.scheduler_, nullptr)), number_(other.number_) {}
  QueuePlace& operator=(QueuePlace&& other) noexcept {
    std::swap(scheduler_, other.scheduler_);
    std::swap(number_, other.number_);
    return *this;
  }
  ~QueuePlace();

 private:
  Scheduler* scheduler_ = nullptr;
  uint64_t number_ = 0;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SCHEDULER_QUEUE_PLACE_H_
