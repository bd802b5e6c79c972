// The whole server in one object: built from its parts, started, drained.
#ifndef ATTND_SERVER_SERVER_H_
#define ATTND_SERVER_SERVER_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/executor/device.h"
#include "server/metrics/metrics.h"
#include "server/options.h"
#include "server/services/http_service.h"

namespace attnd::server {

// Invariants.
//  1. SERVING (health, /readyz) is said only between a successful warm-up and the first of Drain(),
//     Shutdown() and the loss of a device.
//  2. Every call that was let in ends, and its end is counted, before Shutdown() returns.
// Thread-safe, but for construction and destruction.
class Server {
 public:
  // Called at most once, on a thread of the server's; must not block or destroy the server.
  using DeviceLost = std::function<void(const absl::Status&)>;

  using Devices = std::vector<std::unique_ptr<Device>>;

  // Binds, warms up, serves. `devices` empty: those of the options. Fails with a message for
  // whoever started the program: an option, a device, a port that is taken.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       Devices devices = {},
                                                       DeviceLost on_device_lost = nullptr);
  // Shutdown(), then waits for the parts.
  ~Server();

  // 0 on a Unix socket.
  int port() const;
  // 0 if HTTP is off.
  int http_port() const;
  // At least one; the first one's backend is named where there is room for one only.
  std::vector<DeviceDescription> devices() const;
  Metrics& metrics();
  Readiness readiness() const;

  // Reads the tenants file again. What waits stays; a file that is wrong changes nothing, and the
  // log says why.
  void ReloadTenants();

  // Goes out of service without an error for a caller: NOT_SERVING and /readyz 404 at once, calls
  // still accepted for drain_delay_ms; then new calls are refused as UNAVAILABLE, and those inside
  // have drain_timeout_ms to end. True if they all did, and their callers had a moment to read the
  // last answers: the process may end. The delay is skipped after a device loss.
  bool Drain();

  // Stops now: calls still inside end as CANCELLED or UNAVAILABLE, at their next stage.
  void Shutdown();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVER_H_
