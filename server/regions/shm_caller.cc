#include "server/regions/shm_caller.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "server/regions/protocol/unique_fd.h"

namespace attnd::server {
namespace {

// The kernel's states of a TCP connection (linux/tcp.h has no name for them outside the kernel).
constexpr uint8_t kEstablished = 1;

absl::Status CannotAsk(const char* what, int error) {
  return absl::InternalError(absl::StrCat("cannot ask the kernel whose a connection is: ", what,
                                          ": ", std::generic_category().message(error)));
}

struct Question {
  nlmsghdr head;
  inet_diag_req_v2 body;
};

struct Reply {
  // The body of a message of this type; absent if it is another, or cut short.
  template <typename Body>
  absl::optional<Body> As(uint16_t type) const {
    Body read;
    if (head.nlmsg_type != type || size_bytes < sizeof(head) + sizeof(read)) return {};
    std::memcpy(&read, body.data(), sizeof(read));
    return read;
  }

  nlmsghdr head;
  std::array<char, 4096> body;
  size_t size_bytes;  // of both
};
static_assert(offsetof(Reply, body) == sizeof(nlmsghdr), "as it travels");

absl::optional<Question> Ask(const std::string& address, int client_port, int server_port) {
  Question question = {};
  question.head.nlmsg_len = sizeof(question);
  question.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.head.nlmsg_flags = NLM_F_REQUEST;
  question.body.sdiag_protocol = IPPROTO_TCP;
  question.body.idiag_states = ~0U;
  inet_diag_sockid& id = question.body.id;
  id.idiag_sport = htons(static_cast<uint16_t>(client_port));
  id.idiag_dport = htons(static_cast<uint16_t>(server_port));
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  const bool is_v6 = address.find(':') != std::string::npos;
  question.body.sdiag_family = is_v6 ? AF_INET6 : AF_INET;
  if (inet_pton(question.body.sdiag_family, address.c_str(), id.idiag_src) != 1) return {};
  std::memcpy(id.idiag_dst, id.idiag_src, sizeof(id.idiag_src));
  return question;
}

absl::StatusOr<Reply> Exchange(const Question& question) {
  const regions::UniqueFd netlink(socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!netlink.ok()) return CannotAsk("socket", errno);
  sockaddr_nl kernel = {};
  kernel.nl_family = AF_NETLINK;
  if (sendto(netlink.get(), &question, sizeof(question), 0,
             reinterpret_cast<const sockaddr*>(&kernel), sizeof(kernel)) < 0) {
    return CannotAsk("sendto", errno);
  }
  // The answer is there when sendto returns: the kernel writes it within the call.
  Reply reply = {};
  const ssize_t size = recv(netlink.get(), &reply, offsetof(Reply, size_bytes), MSG_DONTWAIT);
  if (size < 0) return CannotAsk("recv", errno);
  reply.size_bytes = static_cast<size_t>(size);
  return reply;
}

// "127.0.0.1" and its port, of gRPC's "ipv4:127.0.0.1:4242"; likewise "ipv6:[::1]:4242", also with
// %5B and %5D.
struct LoopbackPeer {
  std::string address;
  int port = 0;
};

absl::optional<LoopbackPeer> ReadPeer(absl::string_view peer) {
  LoopbackPeer read;
  if (absl::ConsumePrefix(&peer, "ipv4:127.0.0.1:")) {
    read.address = "127.0.0.1";
  } else if (absl::ConsumePrefix(&peer, "ipv6:[::1]:") ||
             absl::ConsumePrefix(&peer, "ipv6:%5B::1%5D:")) {
    read.address = "::1";
  } else {
    return {};
  }
  if (!absl::SimpleAtoi(peer, &read.port) || read.port <= 0 || read.port > 65535) return {};
  return read;
}

}  // namespace

absl::StatusOr<uid_t> LoopbackUid(const std::string& address, int client_port, int server_port) {
  const absl::optional<Question> question = Ask(address, client_port, server_port);
  if (!question) return absl::InternalError(absl::StrCat("no loopback address: ", address));
  const absl::StatusOr<Reply> reply = Exchange(*question);
  if (!reply.ok()) return reply.status();
  const auto missing = [&] {
    return absl::NotFoundError(absl::StrCat("there is no connection from ", address, " port ",
                                            client_port, " to ", address, " port ", server_port));
  };
  if (const auto error = reply->As<nlmsgerr>(NLMSG_ERROR)) {
    if (error->error == -ENOENT) return missing();
    return CannotAsk("answer", -error->error);
  }
  const auto found = reply->As<inet_diag_msg>(SOCK_DIAG_BY_FAMILY);
  if (!found) return CannotAsk("answer", EBADMSG);
  // The kernel also finds a listener, or the rest of a connection that is over, which is nobody's.
  if (found->idiag_state != kEstablished ||
      found->id.idiag_dport != question->body.id.idiag_dport) {
    return missing();
  }
  return found->idiag_uid;
}

absl::StatusOr<ShmCaller> ShmCallers::Of(absl::string_view peer, absl::string_view tenant) const {
  ShmCaller caller;
  caller.tenant.assign(tenant.begin(), tenant.end());
  caller.connection.assign(peer.begin(), peer.end());
  if (absl::StartsWith(peer, "unix:")) {
    caller.connection = "unix:";
    caller.uid = geteuid();
    return caller;
  }
  const absl::optional<LoopbackPeer> loopback = ReadPeer(peer);
  if (!loopback) {
    return absl::PermissionDeniedError(
        "shared memory by name is for callers at 127.0.0.1, [::1] or a Unix socket");
  }
  const absl::StatusOr<uid_t> uid =
      find_uid_(loopback->address, loopback->port, server_port_.load());
  if (!uid.ok()) {
    return absl::PermissionDeniedError(
        absl::StrCat("whose this call is cannot be told: ", uid.status().message()));
  }
  caller.uid = *uid;
  return caller;
}

bool ShmCallers::IsConnected(const std::string& connection) const {
  const absl::optional<LoopbackPeer> loopback = ReadPeer(connection);
  if (!loopback) return true;
  return !absl::IsNotFound(
      find_uid_(loopback->address, loopback->port, server_port_.load()).status());
}

}  // namespace attnd::server
