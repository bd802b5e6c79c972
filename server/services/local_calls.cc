#include "server/services/local_calls.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/regions/protocol/frames.h"
#include "server/regions/protocol/packet.h"
#include "server/services/request_steps.h"

namespace attnd::server {
namespace {

using regions::CallFrame;
using regions::ErrnoStatus;
using regions::Packet;
using regions::UniqueFd;

// Sockets that are looked after before new ones are waited for.
constexpr int kMostReady = 32;

absl::Status Watch(int epoll, int fd) {
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.fd = fd;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) return ErrnoStatus("epoll_ctl", errno);
  return absl::OkStatus();
}

TimePoint Now() { return std::chrono::steady_clock::now(); }

// Whether it is a CallFrame, with something behind it and no descriptor.
bool IsCall(const Packet& packet, const CallFrame& frame) {
  return packet.size_bytes >= static_cast<int64_t>(sizeof(frame)) && !packet.truncated &&
         packet.fds.empty() && frame.head.magic == regions::kFrameMagic &&
         frame.head.version == regions::kFrameVersion &&
         frame.head.type == regions::FrameType::kCall;
}

}  // namespace

absl::Status LocalCalls::Start(const ComputeParts& parts) {
  parts_ = parts;
  packet_.resize(static_cast<size_t>(regions::kMaxCallPacketBytes));
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.ok()) return ErrnoStatus("epoll_create1", errno);
  wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.ok()) return ErrnoStatus("eventfd", errno);
  if (absl::Status status = Watch(epoll_.get(), wake_.get()); !status.ok()) return status;
  MutexLock lock(mutex_);
  thread_ = std::thread([this] { Serve(); });
  is_open_ = true;
  return absl::OkStatus();
}

void LocalCalls::Stop() {
  {
    MutexLock lock(mutex_);
    if (!std::exchange(is_open_, false)) return;
  }
  const uint64_t one = 1;
  // An eventfd's counter has room for it.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  thread_.join();
}

absl::Status LocalCalls::Take(UniqueFd socket) {
  MutexLock lock(mutex_);
  if (!is_open_) return absl::UnavailableError("the server takes no calls here yet, or no more");
  if (static_cast<int>(served_.size()) >= options_.max_connections) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", served_.size(), " connections for calls, as many as may be"));
  }
  const int number = socket.get();
  served_[number].connection = std::make_shared<LocalConnection>(std::move(socket));
  absl::Status status = Watch(epoll_.get(), number);
  if (!status.ok()) served_.erase(number);
  return status;
}

int64_t LocalCalls::connections() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(served_.size());
}

void LocalCalls::Serve() {
  for (;;) {
    const std::vector<int> ready = Wait();
    // Nobody else waits.
    const Duration most_here = ready.size() == 1 ? MostComputedHere() : Duration{};
    for (const int socket : ready) {
      if (socket == wake_.get()) return EndAll();
      if (!ServeOne(Find(socket), most_here)) End(socket);
    }
    asleep_from_ = Now() + options_.busy_poll;
  }
}

std::vector<int> LocalCalls::Wait() {
  epoll_event events[kMostReady];
  int count = 0;
  do {
    const bool sleeps = Now() >= asleep_from_;
    count = epoll_wait(epoll_.get(), events, kMostReady, sleeps ? -1 : 0);
  } while (count <= 0);  // nothing yet, or a signal
  std::vector<int> ready;
  for (int i = 0; i < count; ++i) ready.push_back(events[i].data.fd);
  return ready;
}

LocalCalls::Served& LocalCalls::Find(int socket) {
  MutexLock lock(mutex_);
  return served_.at(socket);
}

bool LocalCalls::ServeOne(Served& served, Duration most_here) {
  LocalConnection& connection = *served.connection;
  // The kernel copies the packet: what is checked is what is used.
  const absl::StatusOr<Packet> packet = regions::ReceivePacket(
      connection.socket.get(), packet_.data(), static_cast<int64_t>(packet_.size()));
  if (!packet.ok()) return absl::IsDeadlineExceeded(packet.status());
  if (packet->size_bytes == 0 && packet->fds.empty()) return false;  // it has left
  CallFrame frame;
  std::memcpy(&frame, packet_.data(), sizeof(frame));
  if (!IsCall(*packet, frame) || connection.is_busy.exchange(true)) {
    ++refused_;
    return false;
  }
  const auto call = std::make_shared<LocalCall>(parts_, served.connection);
  served.call = call;
  call->Begin(
      frame,
      {packet_.data() + sizeof(frame), static_cast<size_t>(packet->size_bytes) - sizeof(frame)},
      most_here);
  return true;
}

void LocalCalls::End(int socket) {
  Served ended;
  {
    MutexLock lock(mutex_);
    const auto found = served_.find(socket);
    ended = std::move(found->second);
    served_.erase(found);
  }
  // A call may hold the socket for longer.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket, nullptr);
  shutdown(socket, SHUT_RDWR);
  if (const std::shared_ptr<LocalCall> call = ended.call.lock()) call->Cancel();
}

void LocalCalls::EndAll() {
  std::vector<int> sockets;
  {
    MutexLock lock(mutex_);
    for (const auto& [socket, served] : served_) sockets.push_back(socket);
  }
  for (const int socket : sockets) End(socket);
}

}  // namespace attnd::server
