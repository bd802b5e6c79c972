#include "client/call_sockets.h"

#include <poll.h>

#include <utility>

#include "client/side_socket.h"

namespace attnd::client {
namespace {

using regions::AnswerFrame;
using regions::OpenCallsFrame;
using regions::UniqueFd;

// To connect, to be greeted, to be answered. Usually all of it takes 100 us; while the server
// touches a new region's gigabytes, longer than a call by gRPC.
constexpr int kSteps = 3;
const absl::Duration kMostForAStep = CallSockets::kMostToTake / kSteps;
constexpr std::chrono::seconds kRefusalHolds(10);
// Beyond so many waiting calls, some open a connection each time.
constexpr size_t kMostKept = 64;

absl::StatusOr<UniqueFd> Open(const LocalServer& server) {
  absl::StatusOr<UniqueFd> socket = ConnectToServer(server, kMostForAStep);
  if (!socket.ok()) return socket;
  const OpenCallsFrame frame;
  absl::Status status = regions::SendPacket(socket->get(), &frame, sizeof(frame));
  if (status.ok()) status = ReceiveFrame<AnswerFrame>(socket->get()).status();
  if (!status.ok()) return status;
  return socket;
}

// With no call on it the server says nothing; if it has ended the connection, that is to be seen.
bool IsQuiet(const UniqueFd& socket) {
  pollfd polled = {socket.get(), POLLIN, 0};
  return poll(&polled, 1, 0) == 0;
}

}  // namespace

UniqueFd CallSockets::TakeKept(const LocalServer& server) {
  MutexLock lock(mutex_);
  for (auto kept = kept_.end(); kept != kept_.begin();) {
    --kept;
    if (kept->instance_id != server.instance_id) continue;
    UniqueFd socket = std::move(kept->socket);
    kept = kept_.erase(kept);
    if (IsQuiet(socket)) return socket;
  }
  return UniqueFd();
}

UniqueFd CallSockets::Take(const LocalServer& server, absl::Duration time_left) {
  if (UniqueFd kept = TakeKept(server); kept.ok()) return kept;
  if (time_left < kMostToTake) return UniqueFd();
  {
    MutexLock lock(mutex_);
    if (refused_by_ == server.instance_id && Clock::now() < ask_again_) return UniqueFd();
  }
  absl::StatusOr<UniqueFd> socket = Open(server);
  if (socket.ok()) return *std::move(socket);
  MutexLock lock(mutex_);
  refused_by_ = server.instance_id;
  ask_again_ = Clock::now() + kRefusalHolds;
  return UniqueFd();
}

void CallSockets::GiveBack(const LocalServer& server, UniqueFd socket) {
  MutexLock lock(mutex_);
  if (kept_.size() == kMostKept) kept_.erase(kept_.begin());
  kept_.push_back({server.instance_id, std::move(socket)});
}

}  // namespace attnd::client
