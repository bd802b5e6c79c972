// The threads that serve raw calls: connections, messages, and what is short enough of a call.
#ifndef ATTND_SERVER_SERVICES_RAW_SERVER_H_
#define ATTND_SERVER_SERVICES_RAW_SERVER_H_

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "kernels/sync.h"
#include "server/services/io_lane.h"
#include "server/services/raw_call.h"

namespace attnd::server {

struct RawServerOptions {
  int threads = 1;  // >= 1
  // For so long after it had something to do a thread looks for more before it sleeps: to be woken
  // takes 20 to 100 us.
  std::chrono::microseconds busy_poll{0};
};

// Every connection belongs to one thread, which reads and writes it and runs its calls' reactions:
// nothing of a call wakes another thread. gRPC's own callback threads wake each other several times
// a call (server/README.md has the figures). With gRPC's default way to wait all threads wait for
// all connections: see SetGrpcEnvironment in transport.h. For a thread that gRPC keeps, another
// stands in (io_lane.h).
//
// Other services on the same server must be synchronous: methods by callback would bring a queue of
// gRPC's that takes part of the connections.
class RawServer {
 public:
  // Begins a call, on its thread.
  using Begin = std::function<void(std::unique_ptr<RawStream>)>;

  RawServer(const RawServerOptions& options, Begin begin);
  // After Stop, or before Start.
  ~RawServer();
  RawServer(const RawServer&) = delete;
  RawServer& operator=(const RawServer&) = delete;

  // Before the server is built, which must not outlive this.
  void AddTo(grpc::ServerBuilder& builder);
  // Once it is built.
  void Start();
  // Once it has been shut down, and whoever works for calls has been told: waits for all calls to
  // be gone, then ends the threads.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class Arrival;

  void Expect(IoLane::Queue* queue);
  // On each of the threads that stand in.
  void StandIn() ABSL_LOCKS_EXCLUDED(watch_);
  // Waits for its turn to watch, and watches. Null: Stop.
  IoLane* AwaitOneLeftAlone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(watch_);
  IoLane* Watch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(watch_);
  void Enter() ABSL_LOCKS_EXCLUDED(mutex_);
  void Leave() ABSL_LOCKS_EXCLUDED(mutex_);

  const RawServerOptions options_;
  const Begin begin_;
  grpc::AsyncGenericService service_;
  std::vector<std::unique_ptr<IoLane>> lanes_;
  // One watches over the lanes, the others wait for their turn or stand in.
  std::vector<std::thread> stand_ins_;

  Mutex watch_;
  CondVar stop_watching_;
  CondVar unwatched_;
  bool watched_ ABSL_GUARDED_BY(watch_) = false;  // by one of them
  bool stopping_ ABSL_GUARDED_BY(watch_) = false;

  Mutex mutex_;
  CondVar empty_;
  int64_t calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_RAW_SERVER_H_
