// gRPC's events for a try whose caller waits.
#ifndef ATTND_CLIENT_POLLED_QUEUE_H_
#define ATTND_CLIENT_POLLED_QUEUE_H_

#include <chrono>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "grpcpp/completion_queue.h"

namespace attnd::client {

// A completion queue of one try's own, on which the waiting thread itself polls the socket: what
// comes wakes that thread, and no other before it. After some milliseconds of sleep a wake-up takes
// 100 us and more. One thread at a time.
class PolledQueue {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Event {
    const void* tag;
    bool ok;
  };

  // `busy_poll`, from now on: so long it looks for events before it sleeps.
  explicit PolledQueue(absl::Duration busy_poll)
      : asleep_from_(std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(busy_poll)) {}

  // What has happened already, in the order of happening.
  absl::optional<Event> Next();
  // nullopt: nothing has happened by then. TimePoint::max(): waits for ever.
  absl::optional<Event> WaitForNext(TimePoint until);
  // Last: waits until gRPC has ended all that it was asked to do.
  void Drain();

  grpc::CompletionQueue* grpc() { return &queue_; }

 private:
  absl::optional<Event> NextUntil(gpr_timespec until);

  const TimePoint asleep_from_;
  grpc::CompletionQueue queue_;
};

}  // namespace attnd::client

#endif  // ATTND_CLIENT_POLLED_QUEUE_H_
