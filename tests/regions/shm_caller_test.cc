#include "server/regions/shm_caller.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "server/regions/protocol/unique_fd.h"

namespace attnd::server {
namespace {

using ::testing::HasSubstr;

// A connection over loopback.
struct Connection {
  explicit Connection(int family) {
    sockaddr_storage address = {};
    socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    address.ss_family = static_cast<sa_family_t>(family);
    if (family == AF_INET) {
      reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    } else {
      reinterpret_cast<sockaddr_in6&>(address).sin6_addr = in6addr_loopback;
    }
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    listener = regions::UniqueFd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    is_up = bind(listener.get(), raw, size) == 0 && listen(listener.get(), 1) == 0 &&
            getsockname(listener.get(), raw, &size) == 0;
    server_port = Port(address);
    client = regions::UniqueFd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    is_up = is_up && connect(client.get(), raw, size) == 0 &&
            getsockname(client.get(), raw, &size) == 0;
    client_port = Port(address);
    accepted = regions::UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  static int Port(const sockaddr_storage& address) {
    return ntohs(address.ss_family == AF_INET
                     ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                     : reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }

  regions::UniqueFd listener, client, accepted;
  int server_port = 0, client_port = 0;
  bool is_up = false;
};

TEST(ShmCaller, TheKernelSaysWhoseAConnectionIs) {
  Connection connection(AF_INET);
  ASSERT_TRUE(connection.is_up);
  const auto uid = LoopbackUid("127.0.0.1", connection.client_port, connection.server_port);
  ASSERT_TRUE(uid.ok()) << uid.status();
  EXPECT_EQ(*uid, getuid());
  // The listener, the other direction, no connection at all.
  EXPECT_TRUE(absl::IsNotFound(LoopbackUid("127.0.0.1", connection.server_port, 1).status()));
  EXPECT_TRUE(absl::IsNotFound(
      LoopbackUid("127.0.0.1", connection.client_port, connection.server_port + 1).status()));
  EXPECT_TRUE(absl::IsNotFound(LoopbackUid("127.0.0.1", 1, connection.server_port).status()));
  EXPECT_EQ(LoopbackUid("localhost", 1, 1).status().code(), absl::StatusCode::kInternal);

  connection.client = regions::UniqueFd();
  EXPECT_TRUE(absl::IsNotFound(
      LoopbackUid("127.0.0.1", connection.client_port, connection.server_port).status()));
}

TEST(ShmCaller, TheKernelSaysItOfIPv6Too) {
  const Connection connection(AF_INET6);
  if (!connection.is_up) GTEST_SKIP() << "no IPv6 here";
  const auto uid = LoopbackUid("::1", connection.client_port, connection.server_port);
  ASSERT_TRUE(uid.ok()) << uid.status();
  EXPECT_EQ(*uid, getuid());
}

// The client's end is another user's: that one is told, not who asks.
TEST(ShmCaller, AnotherUsersConnectionIsTheirs) {
  if (getuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  constexpr uid_t kOther = 12345;
  ASSERT_EQ(seteuid(kOther), 0);
  const Connection connection(AF_INET);
  ASSERT_EQ(seteuid(0), 0);
  ASSERT_TRUE(connection.is_up);
  const auto uid = LoopbackUid("127.0.0.1", connection.client_port, connection.server_port);
  ASSERT_TRUE(uid.ok()) << uid.status();
  EXPECT_EQ(*uid, kOther);
}

TEST(ShmCaller, IsWhoThePeerIs) {
  struct Asked {
    std::string address;
    int client_port = 0, server_port = 0;
  } asked;
  ShmCallers callers(
      [&](const std::string& address, int client_port, int server_port) -> absl::StatusOr<uid_t> {
        asked = {address, client_port, server_port};
        return 77;
      });
  callers.SetServerPort(7070);
  const auto caller = callers.Of("ipv4:127.0.0.1:4242", "team-a");
  ASSERT_TRUE(caller.ok());
  EXPECT_EQ(caller->uid, 77u);
  EXPECT_EQ(caller->tenant, "team-a");
  EXPECT_EQ(caller->connection, "ipv4:127.0.0.1:4242");
  EXPECT_EQ(asked.address, "127.0.0.1");
  EXPECT_EQ(asked.client_port, 4242);
  EXPECT_EQ(asked.server_port, 7070);
  for (const char* peer : {"ipv6:[::1]:4343", "ipv6:%5B::1%5D:4343"}) {
    EXPECT_EQ(callers.Of(peer, "t")->uid, 77u);
    EXPECT_EQ(asked.address, "::1");
    EXPECT_EQ(asked.client_port, 4343);
  }
}

TEST(ShmCaller, OnAUnixSocketIsTheServersUser) {
  const ShmCallers callers([](const std::string&, int, int) -> absl::StatusOr<uid_t> {
    return absl::InternalError("nobody should ask");
  });
  const auto caller = callers.Of("unix:/run/x.sock", "unix");
  ASSERT_TRUE(caller.ok());
  EXPECT_EQ(caller->uid, geteuid());
  EXPECT_EQ(caller->connection, callers.Of("unix:", "unix")->connection);
  EXPECT_TRUE(callers.IsConnected(caller->connection));
}

TEST(ShmCaller, OthersAreRefused) {
  const ShmCallers callers([](const std::string&, int, int) -> absl::StatusOr<uid_t> { return 0; });
  for (const char* peer : {"ipv4:10.0.0.7:42", "ipv4:127.0.0.2:42", "ipv6:[2001:db8::1]:42",
                           "ipv4:127.0.0.1:", "ipv4:127.0.0.1:0", "ipv4:127.0.0.1:65536",
                           "ipv4:127.0.0.1:42x", "", "vsock:3:42"}) {
    EXPECT_EQ(callers.Of(peer, "t").status().code(), absl::StatusCode::kPermissionDenied) << peer;
  }
}

TEST(ShmCaller, WhoCannotBeToldIsRefused) {
  absl::Status answer = absl::InternalError("no netlink here");
  const ShmCallers callers(
      [&](const std::string&, int, int) -> absl::StatusOr<uid_t> { return answer; });
  const absl::Status status = callers.Of("ipv4:127.0.0.1:42", "t").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no netlink here"));
  // What cannot be told is not taken for gone.
  EXPECT_TRUE(callers.IsConnected("ipv4:127.0.0.1:42"));
  answer = absl::NotFoundError("no such connection");
  EXPECT_FALSE(callers.IsConnected("ipv4:127.0.0.1:42"));
}

}  // namespace
}  // namespace attnd::server
