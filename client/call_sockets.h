// Connections to servers of this host, for calls that need no gRPC.
#ifndef ATTND_CLIENT_CALL_SOCKETS_H_
#define ATTND_CLIENT_CALL_SOCKETS_H_

#include <chrono>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "client/region.h"
#include "kernels/sync.h"
#include "server/regions/protocol/unique_fd.h"

namespace attnd::client {

// One carries one call at a time, and is kept for the next. Thread-safe.
class CallSockets {
 public:
  // Not ok(): that server takes no such calls, or is too busy to say so within kMostToTake, after
  // which it is asked again in a while; or `time_left` is less than that, and none was kept. gRPC
  // reaches the server in any case.
  static constexpr absl::Duration kMostToTake = absl::Milliseconds(60);
  regions::UniqueFd Take(const LocalServer& server, absl::Duration time_left)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // With no call on it. The one that has been used by nobody for longest makes room.
  void GiveBack(const LocalServer& server, regions::UniqueFd socket) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Clock = std::chrono::steady_clock;
  struct Kept {
    std::string instance_id;
    regions::UniqueFd socket;
  };

  regions::UniqueFd TakeKept(const LocalServer& server) ABSL_LOCKS_EXCLUDED(mutex_);

  Mutex mutex_;
  std::vector<Kept> kept_ ABSL_GUARDED_BY(mutex_);       // used last at the end
  std::string refused_by_ ABSL_GUARDED_BY(mutex_);       // an instance, ...
  Clock::time_point ask_again_ ABSL_GUARDED_BY(mutex_);  // ... not to be asked until then
};

}  // namespace attnd::client

#endif  // ATTND_CLIENT_CALL_SOCKETS_H_
