#include "client/region.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/side_socket.h"
#include "server/regions/protocol/frames.h"
#include "server/regions/protocol/packet.h"
#include "server/regions/protocol/socket_path.h"

namespace attnd {
namespace {

using regions::AnswerFrame;
using regions::ErrnoStatus;
using regions::RegisterCudaFrame;
using regions::RegisterFrame;
using regions::UniqueFd;

LocalServer ServerOf(const LocalRegionOptions& options) {
  return {options.socket_path.empty() ? regions::DefaultSocketPath() : options.socket_path,
          options.instance_id};
}

absl::Status NoMemory(const char* what) {
  return absl::ResourceExhaustedError(ErrnoStatus(what, errno).message());
}

// All of its pages are there, counted as this process' own. A machine that is asked for more than
// it has would end processes instead of failing the call.
absl::StatusOr<UniqueFd> NewSealedFile(int64_t size_bytes) {
  const int64_t machine_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  if (size_bytes > machine_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("size_bytes is ", size_bytes, ", the machine has ", machine_bytes));
  }
  UniqueFd fd(memfd_create("attnd-region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.ok()) return NoMemory("memfd_create");
  if (ftruncate(fd.get(), size_bytes) != 0) return NoMemory("ftruncate");
  int rc;
  do {
    rc = fallocate(fd.get(), 0, 0, size_bytes);
  } while (rc != 0 && errno == EINTR);
  if (rc != 0) return NoMemory("fallocate");
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus("F_ADD_SEALS", errno);
  }
  return fd;
}

absl::StatusOr<int64_t> WholePages(int64_t size_bytes) {
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  if (size_bytes <= 0 || size_bytes > std::numeric_limits<int64_t>::max() - page_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("size_bytes must be more than 0, and fit, got ", size_bytes));
  }
  return (size_bytes + page_bytes - 1) / page_bytes * page_bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalRegion>> LocalRegion::Create(
    const LocalRegionOptions& options) {
  const absl::StatusOr<int64_t> size_bytes = WholePages(options.size_bytes);
  if (!size_bytes.ok()) return size_bytes.status();
  absl::StatusOr<UniqueFd> socket = client::ConnectToServer(ServerOf(options), options.timeout);
  if (!socket.ok()) return socket.status();
  const absl::StatusOr<UniqueFd> file = NewSealedFile(*size_bytes);
  if (!file.ok()) return file.status();
  void* const base = mmap(nullptr, static_cast<size_t>(*size_bytes), PROT_READ | PROT_WRITE,
                          MAP_SHARED, file->get(), 0);
  if (base == MAP_FAILED) return NoMemory("mmap");
  std::unique_ptr<LocalRegion> region(new LocalRegion(
      ServerOf(options), *std::move(socket),
      {static_cast<unsigned char*>(base), static_cast<size_t>(*size_bytes)}, /*is_mapped=*/true));
  RegisterFrame frame;
  frame.size_bytes = *size_bytes;
  absl::Status status = region->Register(&frame, sizeof(frame), file->get());
  if (!status.ok()) return status;
  return region;
}

absl::StatusOr<std::unique_ptr<LocalRegion>> LocalRegion::Share(const LocalRegionOptions& options,
                                                                const CudaMemory& memory) {
  if (memory.base == nullptr || memory.size_bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "base must not be null, and size_bytes must be more than 0, got ", memory.size_bytes));
  }
  absl::StatusOr<UniqueFd> socket = client::ConnectToServer(ServerOf(options), options.timeout);
  if (!socket.ok()) return socket.status();
  std::unique_ptr<LocalRegion> region(new LocalRegion(
      ServerOf(options), *std::move(socket),
      {static_cast<unsigned char*>(memory.base), static_cast<size_t>(memory.size_bytes)},
      /*is_mapped=*/false));
  RegisterCudaFrame frame;
  if (memory.fd >= 0) frame.size_bytes = memory.size_bytes;
  frame.gpu_uuid = memory.gpu_uuid;
  if (memory.fd < 0) frame.memory_handle = memory.handle;
  if (memory.event) {
    frame.event_handle = *memory.event;
    frame.has_event = 1;
  }
  absl::Status status = region->Register(&frame, sizeof(frame), memory.fd);
  if (!status.ok()) return status;
  return region;
}

absl::Status LocalRegion::Register(const void* frame, int64_t frame_bytes, int fd) {
  absl::Status status = regions::SendPacket(socket_.get(), frame, frame_bytes, fd);
  if (!status.ok()) return status;
  const absl::StatusOr<AnswerFrame> answer = client::ReceiveFrame<AnswerFrame>(socket_.get());
  if (!answer.ok()) return answer.status();
  handle_ = answer->handle;
  return absl::OkStatus();
}

absl::StatusOr<unsigned char*> LocalRegion::Allocate(int64_t size_bytes) {
  const auto all_bytes = static_cast<int64_t>(bytes_.size());
  if (size_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("size_bytes is ", size_bytes, ", must be >= 0"));
  }
  int64_t begin = allocated_bytes_.load();
  do {
    if (size_bytes > all_bytes - begin) {
      return absl::ResourceExhaustedError(absl::StrCat("the region has ", all_bytes - begin, " of ",
                                                       all_bytes, " bytes left, asked for ",
                                                       size_bytes));
    }
    // Rounded up; all_bytes is whole pages, so that it is not passed.
  } while (!allocated_bytes_.compare_exchange_weak(
      begin, begin + (size_bytes + kRegionAlignment - 1) / kRegionAlignment * kRegionAlignment));
  return bytes_.data() + begin;
}

LocalRegion::~LocalRegion() {
  if (is_mapped_) {
    munmap(bytes_.data(), bytes_.size());
    return;
  }
  // The memory may be freed next: the server ends the connection when it has let go of it.
  shutdown(socket_.get(), SHUT_WR);
  char byte;
  while (recv(socket_.get(), &byte, sizeof(byte), 0) > 0) continue;
}

bool LocalRegion::connected() const {
  pollfd polled = {socket_.get(), 0, 0};  // ends are told unasked
  return poll(&polled, 1, 0) == 0;
}

}  // namespace attnd
