// Memory that a server on the same host uses in place.
#ifndef ATTND_CLIENT_REGION_H_
#define ATTND_CLIENT_REGION_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "server/regions/protocol/unique_fd.h"

namespace attnd {

// A server of this host, by its side socket.
struct LocalServer {
  std::string socket_path;
  std::string instance_id;
};

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

// An allocation of this process on a GPU, as CUDA exports it. Only the addresses are looked at
// here: this library needs no CUDA.
struct CudaMemory {
  void* base = nullptr;                      // of the allocation
  int64_t size_bytes = 0;                    // > 0
  std::array<unsigned char, 16> gpu_uuid{};  // cudaDeviceProp::uuid
  // Of cuMemCreate: cuMemExportToShareableHandle's descriptor, which stays the caller's. -1: of
  // cudaMalloc, whose cudaIpcMemHandle_t is `handle`.
  int fd = -1;
  std::array<unsigned char, 64> handle{};
  // A cudaIpcEventHandle_t: each call that uses the memory waits on the GPU for what the event has
  // recorded when the call begins. Absent: the caller waits before it calls.
  absl::optional<std::array<unsigned char, 64>> event{};
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
  // Lends the server memory that is on its GPU already. `options.size_bytes` is not looked at.
  // PERMISSION_DENIED where the server takes none (--allow_cuda_ipc); INVALID_ARGUMENT for memory
  // on a GPU that it does not serve, and for what its driver refuses; else as Create.
  //
  // The memory must stay until this object is gone, whose destructor waits for the server to let go
  // (`timeout` at most), and every call that used it has ended, those that failed included: the
  // server's kernels run on it, and a fault there ends the server.
  // bytes() are the GPU's addresses, not to be touched here.
  static absl::StatusOr<std::unique_ptr<LocalRegion>> Share(const LocalRegionOptions& options,
                                                            const CudaMemory& memory);
  ~LocalRegion();
  LocalRegion(const LocalRegion&) = delete;
  LocalRegion& operator=(const LocalRegion&) = delete;

  // Aligned to a page, or as CUDA gave them.
  absl::Span<unsigned char> bytes() const { return bytes_; }
  const std::array<unsigned char, 16>& handle() const { return handle_; }
  // The next bytes that Allocate has not given yet, aligned to kRegionAlignment; they are never
  // given back. RESOURCE_EXHAUSTED if there are not so many, INVALID_ARGUMENT if there are less
  // than 0. Thread-safe.
  absl::StatusOr<unsigned char*> Allocate(int64_t size_bytes);

  // False once the server has ended the connection: the handle is worth nothing then.
  bool connected() const;

  bool on_gpu() const { return !is_mapped_; }
  // Whom it is shared with.
  const LocalServer& server() const { return server_; }

 private:
  LocalRegion(LocalServer server, regions::UniqueFd socket, absl::Span<unsigned char> bytes,
              bool is_mapped)
      : server_(std::move(server)),
        socket_(std::move(socket)),
        bytes_(bytes),
        is_mapped_(is_mapped) {}

  // Sends a frame that registers the bytes, and takes the handle from the answer.
  absl::Status Register(const void* frame, int64_t frame_bytes, int fd);

  const LocalServer server_;
  const regions::UniqueFd socket_;
  const absl::Span<unsigned char> bytes_;
  const bool is_mapped_;  // here, and so to be taken down; else it is a GPU's
  std::array<unsigned char, 16> handle_ = {};
  std::atomic<int64_t> allocated_bytes_{0};
};

}  // namespace attnd

#endif  // ATTND_CLIENT_REGION_H_
