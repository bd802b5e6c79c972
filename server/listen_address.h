// Where the server listens.
#ifndef ATTND_SERVER_LISTEN_ADDRESS_H_
#define ATTND_SERVER_LISTEN_ADDRESS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace attnd::server {

struct ListenAddress {
  std::string unix_path;  // or, if empty:
  std::string host;       // without brackets
  int port = 0;           // 0: any free one
  bool is_loopback = false;

  bool is_unix() const { return !unix_path.empty(); }
  // As gRPC takes it: "unix:/path", "host:port", "[::1]:port".
  std::string ToString() const;
};

// "host:port", "[ipv6]:port" or "unix:/path". INVALID_ARGUMENT says what is wrong with it. Names
// other than localhost are not taken for loopback, whatever they resolve to.
absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text);

// Makes way for a Unix socket: removes a dead one at `path`. UNAVAILABLE if a server answers there
// (gRPC would silently take its place), FAILED_PRECONDITION if something else lies there.
absl::Status PrepareUnixPath(const std::string& path);

}  // namespace attnd::server

#endif  // ATTND_SERVER_LISTEN_ADDRESS_H_
