// The calls of a step that are under way.
#ifndef ATTND_CLIENT_TOOLS_LOAD_FLIGHTS_H_
#define ATTND_CLIENT_TOOLS_LOAD_FLIGHTS_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/client.h"
#include "client/tools/load/recorder.h"
#include "client/tools/load/verifier.h"
#include "client/tools/load/work.h"
#include "kernels/sync.h"

namespace attnd::tools {

using Clients = std::vector<std::unique_ptr<Client>>;

struct FlightOptions {
  int64_t max_in_flight = 4096;  // calls; who starts more waits
  double verify_share = 0;       // of the answers
  double cancel_share = 0;       // of the calls, cancelled `cancel_after` they were sent
  absl::Duration cancel_after = absl::Milliseconds(1);
  int64_t seed = 1;
};

// A call is sent over the next client in turn, recorded, and perhaps verified or cancelled; which,
// the seed and its number decide. Thread-safe.
class Flights {
 public:
  using TimePoint = Recorder::TimePoint;
  using Done = std::function<void(bool answered)>;

  // All must outlive it.
  Flights(const Clients& clients, const Work& work, const FlightOptions& options,
          Recorder& recorder, Verifier& verifier);
  ~Flights();  // Land()

  // Sends a call that was due then, once there is room; false if it was closed before. `done` is
  // called once it has ended and been recorded, on a thread of the client's: it must not block.
  bool Start(size_t kind, TimePoint due, Done done) ABSL_LOCKS_EXCLUDED(mutex_);

  // Nothing is sent any more.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  // Closes, and waits until none is under way; from `deadline` on they are cancelled. Calls that
  // have not ended kAfterCancel later are lost: it returns without them, but the destructor of
  // their client will wait for them.
  void Land(TimePoint deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  static constexpr std::chrono::seconds kAfterCancel{30};

 private:
  struct Flight {
    TimePoint due;
    size_t kind = 0;
    size_t variant = 0;
    bool verify = false;
    Done done;
    std::shared_ptr<Call> call;  // null: just being started
    bool cancelled = false;
  };
  // Outlives this object, for calls that are lost.
  struct State;

  static void End(const std::shared_ptr<State>& state, int64_t number,
                  absl::StatusOr<AttentionResult> result);
  void Cancel(int64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  void RunCanceller() ABSL_LOCKS_EXCLUDED(mutex_);

  const Clients& clients_;
  const Work& work_;
  const FlightOptions options_;
  const std::shared_ptr<State> state_;

  Mutex mutex_;
  CondVar changed_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::pair<TimePoint, int64_t>> to_cancel_ ABSL_GUARDED_BY(mutex_);
  bool landed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread canceller_;  // where some are to be cancelled
};

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_LOAD_FLIGHTS_H_
