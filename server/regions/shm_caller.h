// Who calls, as far as the kernel knows: what POSIX shared memory by name is allowed by.
#ifndef ATTND_SERVER_REGIONS_SHM_CALLER_H_
#define ATTND_SERVER_REGIONS_SHM_CALLER_H_

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace attnd::server {

// The other end of a call. What is registered belongs to `uid` and `tenant` together: another
// user's, or another tenant's, can neither use it nor see it nor take it away.
//
// Over loopback TCP `uid` is the kernel's word for the client's own socket (sock_diag), so it is no
// claim of the caller's; behind a proxy on this host it is the proxy's, and the tenant alone tells
// its callers apart. gRPC does not tell whose process is at the other end of a Unix socket: there
// it is this server's own user, whom the socket file's mode lets in besides root alone unless
// somebody has opened it.
//
// `connection` tells processes of one user apart, where it can: by the client's port. It outlives
// calls, but not a reconnection, so it is asked for one thing only, what "all my own" means. All
// callers of a Unix socket are one.
struct ShmCaller {
  uid_t uid = 0;
  std::string tenant;
  std::string connection;
};

// The user of the client's end of a TCP connection between two loopback addresses of one family,
// "127.0.0.1" or "::1", while it is connected: NOT_FOUND if there is no such connection, INTERNAL
// if the kernel cannot be asked.
absl::StatusOr<uid_t> LoopbackUid(const std::string& address, int client_port, int server_port);

// Thread-safe.
class ShmCallers {
 public:
  using FindUid = std::function<absl::StatusOr<uid_t>(const std::string& address, int client_port,
                                                      int server_port)>;
  // `find_uid` is put in place by tests.
  explicit ShmCallers(FindUid find_uid = LoopbackUid) : find_uid_(std::move(find_uid)) {}

  // Where the server listens; until then, and on a Unix socket, nobody is known over TCP.
  void SetServerPort(int port) { server_port_ = port; }

  // `peer` is gRPC's name of the other end. PERMISSION_DENIED for who is on another host, or cannot
  // be told.
  absl::StatusOr<ShmCaller> Of(absl::string_view peer, absl::string_view tenant) const;

  // Whether there still is a connection of that name; true where that cannot be told.
  bool IsConnected(const std::string& connection) const;

 private:
  const FindUid find_uid_;
  std::atomic<int> server_port_{0};
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_REGIONS_SHM_CALLER_H_
