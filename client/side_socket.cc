#include "client/side_socket.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>

namespace attnd::client {
namespace {

using regions::ErrnoStatus;
using regions::HelloFrame;
using regions::UniqueFd;

absl::StatusOr<UniqueFd> ConnectTo(const std::string& path, absl::Duration timeout) {
  const absl::StatusOr<sockaddr_un> address = regions::SocketAddress(path);
  if (!address.ok()) return address.status();
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.ok()) return ErrnoStatus("socket", errno);
  const timeval limit = absl::ToTimeval(timeout);
  // Linux holds connect() to SO_SNDTIMEO too.
  if (setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) != 0 ||
      setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) != 0) {
    return ErrnoStatus("setsockopt", errno);
  }
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0) {
    const absl::Status status = ErrnoStatus(absl::StrCat("connect ", path), errno);
    if (errno == ENOENT || errno == ECONNREFUSED) return absl::NotFoundError(status.message());
    return status;
  }
  const absl::StatusOr<uid_t> peer = regions::PeerUid(fd.get());
  if (!peer.ok()) return peer.status();
  if (*peer != geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat("the server at ", path, " runs as user ",
                                                      *peer, ", must be user ", geteuid()));
  }
  return fd;
}

absl::Status CheckInstance(int socket, const std::string& instance_id) {
  const absl::StatusOr<HelloFrame> hello = ReceiveFrame<HelloFrame>(socket);
  if (!hello.ok()) return hello.status();
  const std::string theirs = Text(hello->instance_id);
  if (theirs == instance_id) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the socket is instance ", theirs, "'s, calls go to instance ", instance_id));
}

}  // namespace

absl::StatusOr<UniqueFd> ConnectToServer(const LocalServer& server, absl::Duration timeout) {
  // To the kernel, a timeout of 0 is none.
  if (timeout < absl::Microseconds(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout must be 1 us at least, got ", absl::FormatDuration(timeout)));
  }
  absl::StatusOr<UniqueFd> socket = ConnectTo(server.socket_path, timeout);
  if (!socket.ok()) return socket;
  absl::Status status = CheckInstance(socket->get(), server.instance_id);
  if (!status.ok()) return status;
  return socket;
}

}  // namespace attnd::client
