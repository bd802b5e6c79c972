#include "server/regions/region_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/listen_address.h"
#include "server/regions/protocol/frames.h"
#include "server/regions/protocol/socket_path.h"

namespace attnd::server {
namespace {

using regions::AnswerFrame;
using regions::ErrnoStatus;
using regions::FrameHead;
using regions::FrameType;
using regions::HelloFrame;
using regions::Packet;
using regions::UniqueFd;

// How long the listener rests while the process is out of descriptors.
constexpr int kRestMs = 100;

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status SendAnswer(int socket, const absl::Status& status, const RegionHandle& handle = {}) {
  AnswerFrame answer;
  answer.code = static_cast<int32_t>(status.code());
  answer.handle = handle;
  const absl::string_view text = status.message();
  text.copy(answer.text, sizeof(answer.text) - 1);
  return regions::SendPacket(socket, &answer, sizeof(answer));
}

// A socket that listens at `path`. The folder is locked meanwhile: of two servers that start at
// once, neither removes the other's socket for a dead one.
absl::StatusOr<UniqueFd> ListenAt(const std::string& path) {
  const absl::StatusOr<sockaddr_un> address = regions::SocketAddress(path);
  if (!address.ok()) return address.status();
  const std::string folder = FolderOf(path);
  const UniqueFd lock(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock.ok()) return ErrnoStatus(folder, errno);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::UnavailableError(absl::StrCat("another server is starting in ", folder));
  }
  if (absl::Status status = PrepareUnixPath(path); !status.ok()) return status;
  UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.ok()) return ErrnoStatus("socket", errno);
  // On Linux the path is made with the socket's own mode: it is never open to others, and the
  // process' umask stays as it is.
  if (fchmod(listener.get(), 0600) != 0) return ErrnoStatus("fchmod", errno);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0) {
    return ErrnoStatus(absl::StrCat("bind ", path), errno);
  }
  if (chmod(path.c_str(), 0600) != 0) return ErrnoStatus(absl::StrCat("chmod ", path), errno);
  if (listen(listener.get(), SOMAXCONN) != 0) return ErrnoStatus("listen", errno);
  return listener;
}

ino_t InodeOf(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RegionSocket>> RegionSocket::Listen(
    const RegionSocketOptions& options, std::shared_ptr<RegionTable> table) {
  if (options.instance_id.empty() ||
      options.instance_id.size() >= sizeof(HelloFrame::instance_id)) {
    return absl::InvalidArgumentError(absl::StrCat("instance_id has 1 to ",
                                                   sizeof(HelloFrame::instance_id) - 1,
                                                   " bytes, got ", options.instance_id.size()));
  }
  std::string path = options.path;
  if (path.empty()) {
    path = regions::DefaultSocketPath();
    absl::Status status = regions::PreparePrivateFolder(FolderOf(path), geteuid());
    if (!status.ok()) return status;
  }
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.ok()) return ErrnoStatus("eventfd", errno);
  absl::StatusOr<UniqueFd> listener = ListenAt(path);
  if (!listener.ok()) return listener.status();
  return std::unique_ptr<RegionSocket>(new RegionSocket(options, std::move(path), std::move(table),
                                                        *std::move(listener), std::move(wake)));
}

RegionSocket::RegionSocket(const RegionSocketOptions& options, std::string path,
                           std::shared_ptr<RegionTable> table, UniqueFd listener, UniqueFd wake)
    : options_(options),
      path_(std::move(path)),
      table_(std::move(table)),
      listener_(std::move(listener)),
      wake_(std::move(wake)),
      path_inode_(InodeOf(path_)),
      thread_([this] { Serve(); }) {}

RegionSocket::~RegionSocket() {
  const uint64_t one = 1;
  // An eventfd's counter has room for it.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  thread_.join();
  RemovePath();
}

void RegionSocket::RemovePath() const {
  // Unless somebody has put another socket there.
  if (path_inode_ != 0 && InodeOf(path_) == path_inode_) unlink(path_.c_str());
}

void RegionSocket::Serve() {
  bool rest = false;
  std::vector<pollfd> polled;
  while (true) {
    polled.assign({{wake_.get(), POLLIN, 0}, {rest ? -1 : listener_.get(), POLLIN, 0}});
    for (const auto& [socket, connection] : connections_) polled.push_back({socket, POLLIN, 0});
    const int ready = poll(polled.data(), polled.size(), rest ? kRestMs : -1);
    if (ready < 0 && errno != EINTR) break;  // not with arguments like these
    rest = false;
    if (ready <= 0) continue;
    if (polled[0].revents != 0) break;
    for (size_t i = 2; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      const auto connection = connections_.find(polled[i].fd);
      if (!ServeOne(connection->first, connection->second)) End(connection);
    }
    if (polled[1].revents != 0) rest = !AcceptOne();
  }
  while (!connections_.empty()) End(connections_.begin());
}

bool RegionSocket::AcceptOne() {
  UniqueFd accepted(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!accepted.ok()) {
    return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
  }
  Connection connection;
  if (absl::Status status = Admit(accepted.get(), &connection.uid); !status.ok()) {
    ++refused_count_;
    SendAnswer(accepted.get(), status).IgnoreError();  // it may be gone already
    return true;
  }
  HelloFrame hello;
  std::memcpy(hello.instance_id, options_.instance_id.data(), options_.instance_id.size());
  if (!regions::SendPacket(accepted.get(), &hello, sizeof(hello)).ok()) return true;
  connections_.emplace(accepted.Release(), std::move(connection));
  connection_count_ = static_cast<int64_t>(connections_.size());
  return true;
}

absl::Status RegionSocket::Admit(int socket, uid_t* uid) const {
  const absl::StatusOr<uid_t> peer = options_.peer_uid(socket);
  if (!peer.ok()) return peer.status();
  if (*peer != geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat("the caller is user ", *peer, ", must be user ", geteuid()));
  }
  if (static_cast<int>(connections_.size()) >= options_.max_connections) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", connections_.size(), " connections, as many as may be"));
  }
  *uid = *peer;
  return absl::OkStatus();
}

bool RegionSocket::ServeOne(int socket, Connection& connection) {
  Frame frame;
  // The kernel copies the frame: what is checked here is what is used.
  absl::StatusOr<Packet> packet = regions::ReceivePacket(socket, &frame, sizeof(frame));
  if (!packet.ok()) return absl::IsDeadlineExceeded(packet.status());
  if (packet->size_bytes == 0 && packet->fds.empty()) return false;  // it has left
  if (absl::Status malformed = CheckFrame(frame, *packet); !malformed.ok()) {
    ++refused_count_;
    SendAnswer(socket, malformed).IgnoreError();  // the connection ends either way
    return false;
  }
  if (frame.head.type == FrameType::kOpenCalls) {
    // Another holds it from here on, or it ends.
    SendAnswer(socket, OpenCalls(socket, connection)).IgnoreError();
    return false;
  }
  const int fd = packet->fds.empty() ? -1 : packet->fds[0].get();
  const absl::StatusOr<RegionHandle> handle = Register(connection, frame, fd);
  packet->fds.clear();  // the mapping keeps the file
  // A client that does not take its answers has no use for more of them.
  return SendAnswer(socket, handle.status(), handle.value_or(RegionHandle())).ok();
}

absl::Status RegionSocket::OpenCalls(int socket, const Connection& connection) const {
  if (!connection.handles.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "this connection has ", connection.handles.size(), " regions, for calls it may have none"));
  }
  if (options_.take_calls == nullptr) {
    return absl::UnimplementedError("this server takes no calls over the side socket");
  }
  UniqueFd own(fcntl(socket, F_DUPFD_CLOEXEC, 0));
  if (!own.ok()) return ErrnoStatus("dup", errno);
  return options_.take_calls(std::move(own));
}

absl::Status RegionSocket::CheckFrame(const Frame& frame, const Packet& packet) {
  struct Kind {
    FrameType type;
    size_t frame_bytes;
    size_t least_fds;
    size_t most_fds;
  };
  static constexpr Kind kKinds[] = {{FrameType::kRegister, sizeof(frame.file), 1, 1},
                                    {FrameType::kRegisterCuda, sizeof(frame.cuda), 0, 1},
                                    {FrameType::kOpenCalls, sizeof(frame.calls), 0, 0}};
  const Kind* const kind =
      std::find_if(std::begin(kKinds), std::end(kKinds),
                   [&](const Kind& known) { return known.type == frame.head.type; });
  if (packet.size_bytes < static_cast<int64_t>(sizeof(FrameHead)) ||
      frame.head.magic != regions::kFrameMagic || kind == std::end(kKinds)) {
    return absl::InvalidArgumentError("this is no frame that registers a region or opens calls");
  }
  if (frame.head.version != regions::kFrameVersion) {
    return absl::UnimplementedError(absl::StrCat("the server speaks version ",
                                                 regions::kFrameVersion, " of the protocol, got ",
                                                 frame.head.version));
  }
  if (packet.truncated || packet.size_bytes != static_cast<int64_t>(kind->frame_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("a frame has ", kind->frame_bytes,
                                                   " bytes, got ", packet.size_bytes,
                                                   packet.truncated ? " and more" : ""));
  }
  if (packet.fds.size() < kind->least_fds || packet.fds.size() > kind->most_fds) {
    return absl::InvalidArgumentError(absl::StrCat("a frame brings ",
                                                   kind->most_fds == 0 ? "no" : "one",
                                                   " descriptor, got ", packet.fds.size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<RegionHandle> RegionSocket::Register(Connection& connection, const Frame& frame,
                                                    int fd) const {
  if (static_cast<int>(connection.handles.size()) >= options_.max_regions_per_connection) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "this connection has ", connection.handles.size(), " regions, as many as may be"));
  }
  absl::StatusOr<RegionHandle> handle =
      frame.head.type == FrameType::kRegisterCuda
          ? table_->AddGpu(connection.uid, frame.cuda, fd)
          : table_->Add(connection.uid, fd, frame.file.size_bytes);
  if (handle.ok()) connection.handles.push_back(*handle);
  return handle;
}

void RegionSocket::End(std::map<int, Connection>::iterator connection) {
  for (const RegionHandle& handle : connection->second.handles) table_->Remove(handle);
  close(connection->first);
  connections_.erase(connection);
  connection_count_ = static_cast<int64_t>(connections_.size());
}

}  // namespace attnd::server
