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
#include "server/regions/protocol/frames.h"
#include "server/regions/protocol/packet.h"
#include "server/regions/protocol/socket_path.h"

namespace attnd {
namespace {

using regions::AnswerFrame;
using regions::ErrnoStatus;
using regions::FrameHead;
using regions::FrameType;
using regions::HelloFrame;
using regions::Packet;
using regions::RegisterCudaFrame;
using regions::RegisterFrame;
using regions::UniqueFd;

absl::Status NoMemory(const char* what) {
  return absl::ResourceExhaustedError(ErrnoStatus(what, errno).message());
}

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

// The first bytes of a frame as one of its kinds. None is larger than an AnswerFrame.
using FrameBytes = std::array<char, sizeof(AnswerFrame)>;
template <typename T>
T As(const FrameBytes& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

// A text that fills its field has no NUL.
template <size_t kCapacity>
std::string Text(const char (&field)[kCapacity]) {
  return std::string(field, strnlen(field, kCapacity));
}

// One frame of the wanted type, or the error that the server sent in its place.
template <typename Frame>
absl::StatusOr<Frame> ReceiveFrame(int socket) {
  FrameBytes bytes = {};
  const absl::StatusOr<Packet> packet = regions::ReceivePacket(socket, bytes.data(), bytes.size());
  if (!packet.ok()) return packet.status();
  if (packet->size_bytes == 0) return absl::UnavailableError("the server ended the connection");
  const FrameHead head = As<FrameHead>(bytes);
  const FrameHead ours = Frame().head;
  if (packet->size_bytes < static_cast<int64_t>(sizeof(head)) || head.magic != ours.magic) {
    return absl::FailedPreconditionError("what listens there is no server of attnd's");
  }
  if (head.version != ours.version) {
    return absl::FailedPreconditionError(absl::StrCat("the server speaks version ", head.version,
                                                      " of the protocol, must be ", ours.version));
  }
  if (head.type == FrameType::kAnswer && packet->size_bytes == sizeof(AnswerFrame)) {
    const AnswerFrame answer = As<AnswerFrame>(bytes);
    if (answer.code != 0) {
      return absl::Status(static_cast<absl::StatusCode>(answer.code), Text(answer.text));
    }
  }
  if (head.type != ours.type || packet->size_bytes != sizeof(Frame) || packet->truncated) {
    return absl::InternalError("the server sent a frame that does not belong there");
  }
  return As<Frame>(bytes);
}

absl::Status CheckInstance(int socket, const std::string& instance_id) {
  const absl::StatusOr<HelloFrame> hello = ReceiveFrame<HelloFrame>(socket);
  if (!hello.ok()) return hello.status();
  const std::string theirs = Text(hello->instance_id);
  if (theirs == instance_id) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the socket is instance ", theirs, "'s, calls go to instance ", instance_id));
}

// A connection to the server that calls go to.
absl::StatusOr<UniqueFd> ConnectToServer(const LocalRegionOptions& options) {
  // To the kernel, a timeout of 0 is none.
  if (options.timeout < absl::Microseconds(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout must be 1 us at least, got ", absl::FormatDuration(options.timeout)));
  }
  absl::StatusOr<UniqueFd> socket =
      ConnectTo(options.socket_path.empty() ? regions::DefaultSocketPath() : options.socket_path,
                options.timeout);
  if (!socket.ok()) return socket;
  absl::Status status = CheckInstance(socket->get(), options.instance_id);
  if (!status.ok()) return status;
  return socket;
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
  absl::StatusOr<UniqueFd> socket = ConnectToServer(options);
  if (!socket.ok()) return socket.status();
  const absl::StatusOr<UniqueFd> file = NewSealedFile(*size_bytes);
  if (!file.ok()) return file.status();
  void* const base = mmap(nullptr, static_cast<size_t>(*size_bytes), PROT_READ | PROT_WRITE,
                          MAP_SHARED, file->get(), 0);
  if (base == MAP_FAILED) return NoMemory("mmap");
  std::unique_ptr<LocalRegion> region(new LocalRegion(
      *std::move(socket), {static_cast<unsigned char*>(base), static_cast<size_t>(*size_bytes)},
      /*is_mapped=*/true));
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
  absl::StatusOr<UniqueFd> socket = ConnectToServer(options);
  if (!socket.ok()) return socket.status();
  std::unique_ptr<LocalRegion> region(new LocalRegion(
      *std::move(socket),
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
  const absl::StatusOr<AnswerFrame> answer = ReceiveFrame<AnswerFrame>(socket_.get());
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
