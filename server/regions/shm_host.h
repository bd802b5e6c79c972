// Shared memory by name, as a server and its calls have it.
#ifndef ATTND_SERVER_REGIONS_SHM_HOST_H_
#define ATTND_SERVER_REGIONS_SHM_HOST_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "server/regions/shm_caller.h"
#include "server/regions/shm_names.h"

namespace attnd::server {

// What is registered, and who may. Thread-safe.
struct ShmHost {
  explicit ShmHost(ShmLimits limits)
      : names(std::move(limits),
              [this](const std::string& connection) { return callers.IsConnected(connection); }) {}

  ShmCallers callers;
  ShmNames names;
};

// UNIMPLEMENTED: this server takes none.
absl::Status NoShmHere();

// A call's way to what its caller has registered. The kernel is asked who that is at the first use,
// once: a call lies on one connection. One thread at a time.
class ShmOfCall {
 public:
  // There is none.
  ShmOfCall() = default;
  // `host` outlives it; null: there is none. `peer` is gRPC's name of the other end.
  ShmOfCall(ShmHost* host, std::string peer, std::string tenant)
      : host_(host), peer_(std::move(peer)), tenant_(std::move(tenant)) {}

  // NoShmHere(), and the errors of ShmCallers::Of.
  absl::StatusOr<ShmCaller> Caller();
  // Those, and the errors of ShmNames::Find.
  absl::StatusOr<ShmRange> Find(const std::string& region, uint64_t offset_bytes,
                                uint64_t size_bytes);

 private:
  ShmHost* host_ = nullptr;
  std::string peer_;
  std::string tenant_;
  absl::optional<ShmCaller> caller_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_REGIONS_SHM_HOST_H_
