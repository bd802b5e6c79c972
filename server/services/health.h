// grpc.health.v1. gRPC brings a service of its own, by callback, whose queue would take part of the
// connections (raw_server.h); and its messages are two fields.
#ifndef ATTND_SERVER_SERVICES_HEALTH_H_
#define ATTND_SERVER_SERVICES_HEALTH_H_

#include <grpcpp/impl/service_type.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "kernels/sync.h"
#include "server/services/raw_call.h"

namespace attnd::server {

inline constexpr char kHealthCheckMethod[] = "/grpc.health.v1.Health/Check";
inline constexpr char kHealthWatchMethod[] = "/grpc.health.v1.Health/Watch";
inline constexpr char kHealthListMethod[] = "/grpc.health.v1.Health/List";

// What services say of themselves. Thread-safe.
class HealthBoard {
 public:
  // As HealthCheckResponse has them.
  enum class Status { kUnknown, kServing, kNotServing, kServiceUnknown };
  // Told of each change, on any thread, and of none twice. To be quick: the board waits.
  using Watcher = std::function<void(Status)>;

  // "" is the whole server.
  void Say(const std::string& service, bool is_serving) ABSL_LOCKS_EXCLUDED(mutex_);
  std::map<std::string, bool> All() const ABSL_LOCKS_EXCLUDED(mutex_);
  // kServiceUnknown: nothing has been said of it.
  Status Of(const std::string& service) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Tells `watcher` at once what is so, and from then on what changes, until it is taken away: when
  // Unwatch has returned it is not being told.
  void Watch(const void* who, const std::string& service, Watcher watcher)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Unwatch(const void* who) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    std::string service;
    Watcher watcher;
  };

  Status Known(const std::string& service) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::map<std::string, bool> is_serving_ ABSL_GUARDED_BY(mutex_);
  std::map<const void*, Entry> watchers_ ABSL_GUARDED_BY(mutex_);
};

// Registers the service by its names, so that reflection knows it, and serves List, which tells of
// all that something has been said of. Check and Watch are raw calls. `board` outlives it.
class HealthService final : public grpc::Service {
 public:
  explicit HealthService(const HealthBoard* board);
};

// One message, a service's name; back its status: once, or NOT_FOUND if nothing has been said of
// it.
void StartHealthCheck(std::unique_ptr<RawStream> stream, const HealthBoard& board);
// Back its status now and whenever it changes, until the caller leaves. `board` outlives the call.
void StartHealthWatch(std::unique_ptr<RawStream> stream, HealthBoard& board);

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_HEALTH_H_
