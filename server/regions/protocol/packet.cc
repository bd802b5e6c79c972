#include "server/regions/protocol/packet.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace attnd::regions {
namespace {

// The kernel rounds the space for one descriptor up to that of two; a third is cut off.
union ControlSpace {
  cmsghdr align;
  char bytes[CMSG_SPACE(sizeof(int))];
};

}  // namespace

absl::Status ErrnoStatus(const std::string& what, int error) {
  const std::string text = absl::StrCat(what, ": ", std::generic_category().message(error));
  if (error == EAGAIN || error == EWOULDBLOCK) return absl::DeadlineExceededError(text);
  return absl::UnavailableError(text);
}

absl::Status SendPacket(int socket, const void* bytes, int64_t size_bytes, int fd) {
  iovec piece = {const_cast<void*>(bytes), static_cast<size_t>(size_bytes)};
  ControlSpace control = {};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &fd, sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return ErrnoStatus("sendmsg", errno);
  return absl::OkStatus();  // a packet is sent whole or not at all
}

absl::StatusOr<Packet> ReceivePacket(int socket, void* bytes, int64_t capacity_bytes) {
  iovec piece = {bytes, static_cast<size_t>(capacity_bytes)};
  ControlSpace control = {};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  ssize_t received;
  do {
    received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) return ErrnoStatus("recvmsg", errno);
  Packet packet;
  packet.size_bytes = received;
  packet.truncated = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(int));
      packet.fds.emplace_back(fd);
    }
  }
  return packet;
}

absl::StatusOr<uid_t> PeerUid(int socket) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return ErrnoStatus("SO_PEERCRED", errno);
  }
  return credentials.uid;
}

absl::StatusOr<sockaddr_un> SocketAddress(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("a Unix socket's path has 1 to ",
                                                   sizeof(address.sun_path) - 1, " bytes, got ",
                                                   path.size(), ": ", path));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

}  // namespace attnd::regions
