// Calls of callers on this host, over the side socket.
#ifndef ATTND_SERVER_SERVICES_LOCAL_CALLS_H_
#define ATTND_SERVER_SERVICES_LOCAL_CALLS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "kernels/sync.h"
#include "server/regions/protocol/unique_fd.h"
#include "server/services/compute_parts.h"
#include "server/services/local_call.h"

namespace attnd::server {

struct LocalCallsOptions {
  int max_connections = 256;  // more are refused
  // For so long after it had something to do the thread looks for more before it sleeps.
  std::chrono::microseconds busy_poll{0};
};

// A call whose tensors lie in regions is a few hundred bytes each way, and gRPC takes longer for
// them than small attention does (client/README.md has the figures). One thread serves all
// connections: it reads and submits, which takes microseconds, and computes what is short, but only
// while nobody else waits for it.
//
// What a caller does wrong ends its own connection and nothing else. Thread-safe.
class LocalCalls {
 public:
  explicit LocalCalls(const LocalCallsOptions& options) : options_(options) {}
  // After Stop, or before Start. Jobs of calls have ended.
  ~LocalCalls() { Stop(); }
  LocalCalls(const LocalCalls&) = delete;
  LocalCalls& operator=(const LocalCalls&) = delete;

  // From now on connections are taken. Once.
  absl::Status Start(const ComputeParts& parts);
  // Ends all connections and the thread. Calls that are under way end without a caller.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // A connection that is to carry calls, of this process' own user. UNAVAILABLE outside of Start
  // and Stop, RESOURCE_EXHAUSTED if there are as many as may be.
  absl::Status Take(regions::UniqueFd socket) ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t connections() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Connections ended for what they sent.
  int64_t refused_connections() const { return refused_; }

 private:
  struct Served {
    std::shared_ptr<LocalConnection> connection;
    std::weak_ptr<LocalCall> call;  // the last one
  };

  void Serve();
  // The sockets that have something: at least one.
  std::vector<int> Wait();
  // False: the connection is to end.
  bool ServeOne(Served& served, Duration most_here);
  Served& Find(int socket) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(int socket) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndAll() ABSL_LOCKS_EXCLUDED(mutex_);

  const LocalCallsOptions options_;
  ComputeParts parts_;
  regions::UniqueFd epoll_;
  regions::UniqueFd wake_;  // an eventfd: readable when the thread is to end
  // The thread's own.
  std::vector<unsigned char> packet_;
  TimePoint asleep_from_{};
  std::atomic<int64_t> refused_{0};

  mutable Mutex mutex_;
  // By socket. What is in it is the thread's, and used without the lock.
  std::map<int, Served> served_ ABSL_GUARDED_BY(mutex_);
  bool is_open_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_LOCAL_CALLS_H_
