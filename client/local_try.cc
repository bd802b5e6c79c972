#include "client/local_try.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"
#include "grpcpp/support/slice.h"
#include "server/regions/protocol/frames.h"
#include "server/regions/protocol/packet.h"

namespace attnd::client {

using regions::CallAnswerFrame;
using regions::CallFrame;
using regions::UniqueFd;

namespace {

using TimePoint = std::chrono::steady_clock::time_point;

TimePoint Now() { return std::chrono::steady_clock::now(); }

// Sleeps until the socket has something, and not beyond `until`; may return early.
void Sleep(int socket, TimePoint now, TimePoint until) {
  pollfd polled = {socket, POLLIN, 0};
  const timespec left =
      absl::ToTimespec(absl::FromChrono(std::max(until - now, std::chrono::nanoseconds(0))));
  ppoll(&polled, 1, until == TimePoint::max() ? nullptr : &left, nullptr);
}

}  // namespace

const LocalServer* LocalServerOf(const AttentionRequest& request, const EncodedRequest& encoded) {
  const bool has_lse_place = !request.want_lse || request.lse_place.has_value();
  if (!request.o_place || !has_lse_place || encoded.is_stream) return nullptr;
  const LocalRegion* const regions[] = {
      request.q.region, request.k.region, request.v.region, request.o_place->region,
      request.lse_place ? request.lse_place->region : request.o_place->region};
  for (const LocalRegion* const region : regions) {
    if (region == nullptr) return nullptr;
    if (region->server().instance_id != regions[0]->server().instance_id) return nullptr;
  }
  const auto packet_bytes = static_cast<int64_t>(sizeof(CallFrame)) + encoded.size_bytes();
  return packet_bytes <= regions::kMaxCallPacketBytes ? &regions[0]->server() : nullptr;
}

void LocalContext::Cancel() {
  MutexLock lock(mutex_);
  cancelled_ = true;
  if (socket_.ok()) shutdown(socket_.get(), SHUT_RDWR);
}

int LocalContext::socket() const {
  MutexLock lock(mutex_);
  return socket_.get();
}

bool LocalContext::is_cancelled() const {
  MutexLock lock(mutex_);
  return cancelled_;
}

void LocalContext::LetGo(bool is_usable) {
  UniqueFd socket;
  {
    MutexLock lock(mutex_);
    socket = std::move(socket_);
    is_usable = is_usable && !cancelled_;
  }
  if (is_usable) sockets_.GiveBack(server_, std::move(socket));
}

class LocalTry final : public PolledTry {
 public:
  LocalTry(const std::shared_ptr<LocalContext>& context, End end, const EncodedRequest& request,
           absl::optional<TimePoint> deadline, absl::Duration busy_poll)
      : PolledTry(context, std::move(end)),
        local_(*context),
        request_(request),
        deadline_(deadline.value_or(TimePoint::max())),
        asleep_from_(Now() + absl::ToChronoNanoseconds(busy_poll)) {}

  void Run() override {
    CallFrame frame;
    if (deadline_ != TimePoint::max()) {
      const int64_t left_us = absl::ToInt64Microseconds(absl::FromChrono(deadline_ - Now()));
      frame.timeout_us = std::max<int64_t>(left_us, 1);
    }
    std::string packet(reinterpret_cast<const char*>(&frame), sizeof(frame));
    for (const std::string& piece : request_.frames) packet += piece;
    const absl::Status sent =
        regions::SendPacket(local_.socket(), packet.data(), static_cast<int64_t>(packet.size()));
    // Not what errno would say of it: that the server takes nothing in is no deadline's passing.
    if (!sent.ok()) failure_ = absl::UnavailableError(sent.message());
  }

  bool Poll(TimePoint until) override {
    const int socket = local_.socket();
    while (failure_.ok() && !has_answer_) {
      if (Receive(socket)) break;
      const TimePoint now = Now();
      if (now >= deadline_) {
        failure_ = absl::DeadlineExceededError("the deadline passed");
      } else if (now >= until) {
        return false;
      } else if (now >= asleep_from_) {
        Sleep(socket, now, std::min(until, deadline_));
      }
    }
    local_.LetGo(has_answer_);
    const bool was_cancelled = !has_answer_ && local_.is_cancelled();
    Done(was_cancelled ? absl::CancelledError() : absl::Status(failure_));
    return true;
  }

  Answer TakeAnswer() override { return {answer_, nullptr}; }

 private:
  // False: there is nothing yet.
  bool Receive(int socket) {
    std::array<char, regions::kMaxCallAnswerPacketBytes> packet;
    const ssize_t received = recv(socket, packet.data(), packet.size(), MSG_DONTWAIT);
    if (received < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    CallAnswerFrame frame;
    if (received < static_cast<ssize_t>(sizeof(frame))) {
      failure_ = absl::UnavailableError("the server ended the connection");
      return true;
    }
    std::memcpy(&frame, packet.data(), sizeof(frame));
    const regions::FrameHead ours = CallAnswerFrame().head;
    if (frame.head.magic != ours.magic || frame.head.version != ours.version ||
        frame.head.type != ours.type) {
      failure_ = absl::InternalError("the server sent a frame that does not belong there");
      return true;
    }
    Take(frame, absl::string_view(packet.data() + sizeof(frame),
                                  static_cast<size_t>(received) - sizeof(frame)));
    return true;
  }

  void Take(const CallAnswerFrame& frame, absl::string_view bytes) {
    has_answer_ = true;
    local_.word_.from_server = true;
    if (frame.code == 0) {
      const grpc::Slice slice(bytes.data(), bytes.size());
      answer_ = grpc::ByteBuffer(&slice, 1);
      return;
    }
    local_.word_.untouched = frame.is_untouched != 0;
    if (frame.has_pushback != 0) local_.word_.pushback_ms = frame.pushback_ms;
    failure_ = absl::Status(static_cast<absl::StatusCode>(frame.code), bytes);
  }

  LocalContext& local_;
  const EncodedRequest& request_;
  const TimePoint deadline_;
  const TimePoint asleep_from_;
  absl::Status failure_;
  bool has_answer_ = false;  // which may be an error
  grpc::ByteBuffer answer_;
};

std::unique_ptr<PolledTry> NewLocalTry(const std::shared_ptr<LocalContext>& context, Try::End end,
                                       const EncodedRequest& request,
                                       absl::optional<TimePoint> deadline,
                                       absl::Duration busy_poll) {
  return std::make_unique<LocalTry>(context, std::move(end), request, deadline, busy_poll);
}

}  // namespace attnd::client
