// Packets with descriptors over a Unix SOCK_SEQPACKET socket.
#ifndef ATTND_SERVER_REGIONS_PROTOCOL_PACKET_H_
#define ATTND_SERVER_REGIONS_PROTOCOL_PACKET_H_

#include <sys/types.h>
#include <sys/un.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/regions/protocol/unique_fd.h"

namespace attnd::regions {

struct Packet {
  int64_t size_bytes = 0;     // 0: the peer has closed its end
  bool truncated = false;     // there were more bytes or more descriptors
  std::vector<UniqueFd> fds;  // close-on-exec
};

// errno's value as a status: `what` says what failed. DEADLINE_EXCEEDED where the call would have
// had to wait (EAGAIN), UNAVAILABLE for all others.
absl::Status ErrnoStatus(const std::string& what, int error);

// Sends one packet whole, with `fd` unless it is -1; never raises SIGPIPE. `fd` stays the caller's.
absl::Status SendPacket(int socket, const void* bytes, int64_t size_bytes, int fd = -1);

// The next packet, cut to `capacity_bytes`. Descriptors that came with it are the caller's, even
// where they were not asked for.
absl::StatusOr<Packet> ReceivePacket(int socket, void* bytes, int64_t capacity_bytes);

// Effective user of the process at the other end, when it connected or listened (SO_PEERCRED).
absl::StatusOr<uid_t> PeerUid(int socket);

// INVALID_ARGUMENT if `path` is empty or too long for the system (107 bytes).
absl::StatusOr<sockaddr_un> SocketAddress(const std::string& path);

}  // namespace attnd::regions

#endif  // ATTND_SERVER_REGIONS_PROTOCOL_PACKET_H_
