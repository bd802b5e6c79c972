#include "tests/client/tcp_proxy.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace attnd::testing {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

int ConnectTo(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(port);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
  close(fd);
  return -1;
}

// One read from `from`, all of it written to `to`. The bytes moved; <= 0 at the end.
ssize_t Forward(int from, int to) {
  char bytes[1 << 16];
  const ssize_t count = read(from, bytes, sizeof(bytes));
  for (ssize_t sent = 0; sent < count;) {
    const ssize_t wrote = send(to, bytes + sent, count - sent, MSG_NOSIGNAL);
    if (wrote <= 0) return -1;
    sent += wrote;
  }
  return count;
}

}  // namespace

TcpProxy::TcpProxy(int port) : server_port_(port) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (bind(listener_, reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(listener_, 64) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    abort();
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

TcpProxy::~TcpProxy() {
  stopping_ = true;
  acceptor_.join();
  close(listener_);
  MutexLock lock(mutex_);
  for (auto& connection : connections_) {
    connection->pump.join();
    close(connection->client);
    close(connection->server);
  }
}

void TcpProxy::FreezeConnections() {
  MutexLock lock(mutex_);
  for (auto& connection : connections_) connection->frozen = true;
}

void TcpProxy::CutConnections() {
  MutexLock lock(mutex_);
  for (auto& connection : connections_) {
    const linger reset{1, 0};
    setsockopt(connection->client, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    shutdown(connection->client, SHUT_RDWR);
    shutdown(connection->server, SHUT_RDWR);
    connection->ended = true;
  }
}

void TcpProxy::Accept() {
  while (!stopping_) {
    pollfd waiting{listener_, POLLIN, 0};
    if (poll(&waiting, 1, 10) <= 0) continue;
    auto connection = std::make_unique<Connection>();
    connection->client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    connection->server = ConnectTo(server_port_);
    if (connection->client < 0) continue;
    if (connection->server < 0) {
      close(connection->client);
      continue;
    }
    ++accepted_;
    Connection* const raw = connection.get();
    raw->pump = std::thread([this, raw] { Pump(raw); });
    MutexLock lock(mutex_);
    connections_.push_back(std::move(connection));
  }
}

void TcpProxy::Pump(Connection* connection) {
  while (!stopping_ && !connection->ended) {
    // A frozen connection is not read: the sender's socket fills and stays full.
    pollfd ends[2] = {{connection->client, POLLIN, 0}, {connection->server, POLLIN, 0}};
    if (poll(ends, connection->frozen ? 0 : 2, 10) <= 0) continue;
    for (int i = 0; i < 2; ++i) {
      if ((ends[i].revents & (POLLIN | POLLHUP | POLLERR)) == 0 || connection->frozen) continue;
      const ssize_t moved = Forward(ends[i].fd, ends[1 - i].fd);
      if (moved <= 0) {
        shutdown(connection->client, SHUT_RDWR);
        shutdown(connection->server, SHUT_RDWR);
        return;
      }
      forwarded_bytes_ += moved;
    }
  }
}

}  // namespace attnd::testing
