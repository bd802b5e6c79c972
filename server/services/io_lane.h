// A queue of gRPC's and who serves it.
#ifndef ATTND_SERVER_SERVICES_IO_LANE_H_
#define ATTND_SERVER_SERVICES_IO_LANE_H_

#include <grpcpp/completion_queue.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "kernels/sync.h"
#include "server/clock.h"

namespace attnd::server {

// A queue's connections are served by one thread, so that nothing of a call wakes another one. But
// gRPC reads a connection for as long as there is something to read: beside a caller that sends
// 50 MB the others would wait for 100 ms. So somebody glances at the lane every few milliseconds,
// and stands in for its thread while that one does not come back.
class IoLane {
 public:
  using Queue = grpc::ServerCompletionQueue;

  // For `busy_poll` after it had something to do the thread looks for more before it sleeps.
  IoLane(std::unique_ptr<Queue> queue, std::chrono::microseconds busy_poll);
  // After Join.
  ~IoLane() = default;
  IoLane(const IoLane&) = delete;
  IoLane& operator=(const IoLane&) = delete;

  Queue* queue() { return queue_.get(); }

  void Start();
  // Ends the queue, and with it the thread, when all that is in it is done. Also if never started.
  void Join();

  // Since the last glance: there was nothing to do; somebody came back from gRPC; or nobody did
  // although the lane's thread was at work, and nobody waits for its other connections.
  enum class Seen { kIdle, kServed, kLeftAlone };
  // By one thread at a time, between Start and Join.
  Seen Glance(TimePoint now);
  // Any thread, before Join: serves the queue until its own thread is back, for 10 ms at most.
  void StandIn();
  // Grows with each coming and going of the lane's own thread between gRPC and reactions.
  uint64_t own_turns() const { return own_turns_; }

  // The lane that this thread serves, its own or as a stand-in; null: none.
  static IoLane* OfThisThread();
  static bool IsServing() { return OfThisThread() != nullptr; }
  // On a thread that serves a lane, false: it has been at work for a millisecond without looking
  // for more, so what takes long is a worker's now. True on other threads.
  static bool HasTime();

  // A small message of one of the lane's calls is there or on its way; it has come, or will not
  // come. Any thread.
  void ExpectMessage() { ++expected_; }
  void ExpectNoMore() { --expected_; }
  // While messages are expected, `send` is called when those that have come have been handled, or
  // soon: answers that go out one right after the other wake their caller once. False, and it is
  // not kept: none is expected, or this is not the lane's own thread.
  [[nodiscard]] bool PutOff(std::function<void()> send) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Serve();
  // Another event while answers are put off; false: they have been sent, and there is none at hand.
  bool NextBeforeSending(void** tag, bool* ok) ABSL_LOCKS_EXCLUDED(mutex_);
  void SendPutOff() ABSL_LOCKS_EXCLUDED(mutex_);
  // False: the queue has ended.
  bool Next(void** tag, bool* ok);
  Duration ProcessorTime() const;

  const std::unique_ptr<Queue> queue_;
  const std::chrono::microseconds busy_poll_;
  std::atomic<uint64_t> own_turns_{0};
  std::atomic<uint64_t> other_turns_{0};  // of those who stand in
  std::atomic<int64_t> expected_{0};
  Mutex mutex_;
  std::vector<std::function<void()>> put_off_ ABSL_GUARDED_BY(mutex_);
  TimePoint put_off_until_{};  // the own thread's
  std::thread thread_;
  // Of the last glance.
  uint64_t seen_turns_ = 0;
  TimePoint seen_at_{};
  Duration seen_processor_time_{};
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_IO_LANE_H_
