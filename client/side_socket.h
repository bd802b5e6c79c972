// The client's end of a server's side socket (server/regions/protocol/frames.h).
#ifndef ATTND_CLIENT_SIDE_SOCKET_H_
#define ATTND_CLIENT_SIDE_SOCKET_H_

#include <array>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/region.h"
#include "server/regions/protocol/frames.h"
#include "server/regions/protocol/packet.h"
#include "server/regions/protocol/unique_fd.h"

namespace attnd::client {

// A connection that the server has greeted. Errors as LocalRegion::Create; `timeout` holds for each
// step, and for each packet from here on.
absl::StatusOr<regions::UniqueFd> ConnectToServer(const LocalServer& server,
                                                  absl::Duration timeout);

// The first bytes of a frame as one of its kinds. None is larger than an AnswerFrame.
using FrameBytes = std::array<char, sizeof(regions::AnswerFrame)>;
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
  const absl::StatusOr<regions::Packet> packet =
      regions::ReceivePacket(socket, bytes.data(), bytes.size());
  if (!packet.ok()) return packet.status();
  if (packet->size_bytes == 0) return absl::UnavailableError("the server ended the connection");
  const regions::FrameHead head = As<regions::FrameHead>(bytes);
  const regions::FrameHead ours = Frame().head;
  if (packet->size_bytes < static_cast<int64_t>(sizeof(head)) || head.magic != ours.magic) {
    return absl::FailedPreconditionError("what listens there is no server of attnd's");
  }
  if (head.version != ours.version) {
    return absl::FailedPreconditionError(absl::StrCat("the server speaks version ", head.version,
                                                      " of the protocol, must be ", ours.version));
  }
  if (head.type == regions::FrameType::kAnswer &&
      packet->size_bytes == sizeof(regions::AnswerFrame)) {
    const regions::AnswerFrame answer = As<regions::AnswerFrame>(bytes);
    if (answer.code != 0) {
      return absl::Status(static_cast<absl::StatusCode>(answer.code), Text(answer.text));
    }
  }
  if (head.type != ours.type || packet->size_bytes != sizeof(Frame) || packet->truncated) {
    return absl::InternalError("the server sent a frame that does not belong there");
  }
  return As<Frame>(bytes);
}

}  // namespace attnd::client

#endif  // ATTND_CLIENT_SIDE_SOCKET_H_
