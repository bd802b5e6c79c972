#include "server/listen_address.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace attnd::server {
namespace {

constexpr int kMaxPort = 65535;

bool IsLoopback(const std::string& host) {
  in_addr v4;
  in6_addr v6;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return host == "localhost";
}

}  // namespace

std::string ListenAddress::ToString() const {
  if (is_unix()) return absl::StrCat("unix:", unix_path);
  if (absl::StrContains(host, ':')) return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
}

absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text) {
  ListenAddress address;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    if (rest.empty() || rest.size() >= sizeof(sockaddr_un::sun_path)) {
      return absl::InvalidArgumentError(absl::StrCat("a socket path has 1 to ",
                                                     sizeof(sockaddr_un::sun_path) - 1,
                                                     " bytes, this one has ", rest.size()));
    }
    address.unix_path = std::string(rest);
    address.is_loopback = true;
    return address;
  }
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) {
    return absl::InvalidArgumentError("must be host:port, [ipv6]:port or unix:/path");
  }
  absl::string_view host = rest.substr(0, colon);
  const bool bracketed = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  if (host.empty() || (!bracketed && absl::StrContains(host, ':'))) {
    return absl::InvalidArgumentError("an IPv6 address stands in brackets: [::1]:7070");
  }
  if (!absl::SimpleAtoi(rest.substr(colon + 1), &address.port) || address.port < 0 ||
      address.port > kMaxPort) {
    return absl::InvalidArgumentError(
        absl::StrCat("the port must be 0 to ", kMaxPort, ", got ", rest.substr(colon + 1)));
  }
  address.host = std::string(host);
  address.is_loopback = IsLoopback(address.host);
  return address;
}

absl::Status PrepareUnixPath(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return absl::OkStatus();
  if (!S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is there and is no socket"));
  }
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError(absl::StrCat("socket: ", std::strerror(errno)));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const int rc = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  const int error = errno;
  close(fd);
  // EPROTOTYPE: with a socket of packets, as the side socket is.
  if (rc == 0 || error == EPROTOTYPE) {
    return absl::UnavailableError(absl::StrCat("a server already listens on ", path));
  }
  if (error != ECONNREFUSED) {
    return absl::UnavailableError(absl::StrCat(path, " is taken: ", std::strerror(error)));
  }
  unlink(path.c_str());
  return absl::OkStatus();
}

}  // namespace attnd::server
