// Whole reads and writes of a socket, as both ends of the raw baseline do them.
#ifndef ATTND_TESTS_BENCH_SOCKET_IO_H_
#define ATTND_TESTS_BENCH_SOCKET_IO_H_

#include <sys/socket.h>

#include <cerrno>
#include <cstddef>

namespace attnd::bench {

// False if the connection ends before.
inline bool ReadAll(int fd, void* to, size_t size_bytes) {
  auto* at = static_cast<unsigned char*>(to);
  while (size_bytes > 0) {
    const ssize_t got = recv(fd, at, size_bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    size_bytes -= static_cast<size_t>(got);
  }
  return true;
}

inline bool WriteAll(int fd, const void* from, size_t size_bytes) {
  const auto* at = static_cast<const unsigned char*>(from);
  while (size_bytes > 0) {
    const ssize_t sent = send(fd, at, size_bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    size_bytes -= static_cast<size_t>(sent);
  }
  return true;
}

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_SOCKET_IO_H_
