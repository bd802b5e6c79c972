// Memory that a server on the same host uses in place.
#ifndef ATTND_CLIENT_REGION_H_
#define ATTND_CLIENT_REGION_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/regions/protocol/unique_fd.h"

namespace attnd {

struct LocalRegionOptions {
  std::string socket_path;  // the server's --local_socket; empty: where it is by default
  // Of the server that calls go to (GetServerInfo). The socket's must be the same: a port that is
  // forwarded from elsewhere looks local and is not.
  std::string instance_id;
  int64_t size_bytes = 0;  // > 0; rounded up to whole pages
  // For each of three steps: to connect, to be greeted, to be answered. The answer takes longer
  // for large regions. > 0.
  absl::Duration timeout = absl::Seconds(10);
};

inline constexpr int64_t kRegionAlignment = 256;  // of what Allocate gives

// Zeroed memory, shared with one server: both read and write it. Put tensors there, name them in a
// call by handle and offset, and leave them alone until the call has ended. It ends with this
// object: calls that use it then still finish at the server, new ones are refused. If the server
// goes away, the memory stays, and the handle is worth nothing. Reading and writing is any
// thread's.
class LocalRegion {
 public:
  // NOT_FOUND: no server listens at that path. FAILED_PRECONDITION: it is another instance, speaks
  // another version, or runs as another user. DEADLINE_EXCEEDED: a step took longer than `timeout`.
  // RESOURCE_EXHAUSTED: no memory here, or the server's limit on regions; its message says which.
  // Others are as the server answered.
  static absl::StatusOr<std::unique_ptr<LocalRegion>> Create(const LocalRegionOptions& options);
  ~LocalRegion();
  LocalRegion(const LocalRegion&) = delete;
  LocalRegion& operator=(const LocalRegion&) = delete;

  // Aligned to a page.
  absl::Span<unsigned char> bytes() const { return bytes_; }
  const std::array<unsigned char, 16>& handle() const { return handle_; }
  // The next bytes that Allocate has not given yet, aligned to kRegionAlignment; they are never
  // given back. RESOURCE_EXHAUSTED if there are not so many, INVALID_ARGUMENT if there are less
  // than 0. Thread-safe.
  absl::StatusOr<unsigned char*> Allocate(int64_t size_bytes);

  // False once the server has ended the connection: the handle is worth nothing then.
  bool connected() const;

 private:
  LocalRegion(regions::UniqueFd socket, absl::Span<unsigned char> bytes)
      : socket_(std::move(socket)), bytes_(bytes) {}

  const regions::UniqueFd socket_;
  const absl::Span<unsigned char> bytes_;
  std::array<unsigned char, 16> handle_ = {};
  std::atomic<int64_t> allocated_bytes_{0};
};

}  // namespace attnd

#endif  // ATTND_CLIENT_REGION_H_
