#include "client/local_try.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "server/regions/protocol/frames.h"
#include "server/regions/protocol/packet.h"

namespace attnd::client {
namespace {

using regions::CallAnswerFrame;
using regions::CallFrame;
using regions::UniqueFd;
using std::chrono::steady_clock;

const LocalServer kServer = {"/nowhere/attnd.sock", "instance"};

// A try, and the server's end of its connection.
class LocalTryTest : public ::testing::Test {
 protected:
  LocalTryTest() { Connect(); }

  void Connect() {
    int fds[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    fd_ = fds[0];
    server_ = UniqueFd(fds[1]);
    context_ = std::make_shared<LocalContext>(sockets_, kServer, UniqueFd(fds[0]));
    request_.frames[0] = "message";
  }

  void Run(absl::optional<steady_clock::time_point> deadline = absl::nullopt) {
    auto next = NewLocalTry(
        context_,
        [this](std::unique_ptr<Try>, const absl::Status& status) {
          ++ends_;
          status_ = status;
        },
        request_, deadline, absl::ZeroDuration());
    try_ = next.release();  // its own, until its end
    try_->Run();
  }
  bool Poll(absl::Duration timeout = absl::Seconds(60)) {
    return try_->Poll(steady_clock::now() + absl::ToChronoNanoseconds(timeout));
  }
  // Behind the frame.
  std::string Received(CallFrame* frame) const {
    std::array<char, 1024> bytes;
    const auto packet = regions::ReceivePacket(server_.get(), bytes.data(), bytes.size());
    EXPECT_TRUE(packet.ok()) << packet.status();
    std::memcpy(frame, bytes.data(), sizeof(*frame));
    return {bytes.data() + sizeof(*frame),
            static_cast<size_t>(packet->size_bytes) - sizeof(*frame)};
  }
  void Answer(const CallAnswerFrame& frame, const std::string& text) const {
    const std::string packet =
        std::string(reinterpret_cast<const char*>(&frame), sizeof(frame)) + text;
    EXPECT_TRUE(
        regions::SendPacket(server_.get(), packet.data(), static_cast<int64_t>(packet.size()))
            .ok());
  }
  int Kept() { return sockets_.Take(kServer, absl::ZeroDuration()).get(); }

  CallSockets sockets_;
  int fd_ = -1;
  UniqueFd server_;
  std::shared_ptr<LocalContext> context_;
  EncodedRequest request_;
  PolledTry* try_ = nullptr;
  int ends_ = 0;
  absl::Status status_;
};

TEST_F(LocalTryTest, SendsOnePacketAndKeepsTheConnectionForTheNext) {
  Run(steady_clock::now() + std::chrono::hours(1));
  EXPECT_FALSE(Poll(absl::ZeroDuration()));
  CallFrame frame;
  EXPECT_EQ(Received(&frame), "message");
  EXPECT_GT(frame.timeout_us, 3590'000'000);
  EXPECT_LE(frame.timeout_us, 3600'000'000);
  Answer({}, "answer");
  EXPECT_TRUE(Poll());
  EXPECT_EQ(ends_, 1);
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_TRUE(context_->word().from_server);
  EXPECT_EQ(Kept(), fd_);
}

TEST_F(LocalTryTest, AnErrorIsTheServersWord) {
  Run();
  CallAnswerFrame frame;
  frame.code = static_cast<int32_t>(absl::StatusCode::kResourceExhausted);
  frame.is_untouched = 1;
  frame.has_pushback = 1;
  frame.pushback_ms = -1;
  Answer(frame, "full");
  EXPECT_TRUE(Poll());
  EXPECT_EQ(status_, absl::ResourceExhaustedError("full"));
  EXPECT_TRUE(context_->word().untouched);
  EXPECT_EQ(context_->word().pushback_ms, -1);
  EXPECT_EQ(Kept(), fd_);
}

// The next call has the connection by then.
TEST_F(LocalTryTest, ACancelAfterTheEndLeavesTheConnectionAlone) {
  Run();
  Answer({}, "answer");
  EXPECT_TRUE(Poll());
  context_->Cancel();
  EXPECT_EQ(Kept(), fd_);
}

TEST_F(LocalTryTest, ACancelEndsItAndTheConnection) {
  Run();
  EXPECT_FALSE(Poll(absl::ZeroDuration()));
  context_->Cancel();
  EXPECT_TRUE(Poll());
  EXPECT_EQ(status_.code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(context_->word().from_server);
  EXPECT_EQ(Kept(), -1);
}

TEST_F(LocalTryTest, SoDoesADeadline) {
  Run(steady_clock::now() + std::chrono::milliseconds(20));
  EXPECT_TRUE(Poll(absl::Hours(1)));
  EXPECT_EQ(status_.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(context_->word().untouched);
  EXPECT_EQ(Kept(), -1);
}

TEST_F(LocalTryTest, AServerThatIsGoneIsUnavailable) {
  for (const bool before_it_is_sent : {true, false}) {
    Connect();
    if (before_it_is_sent) server_ = UniqueFd();
    Run();
    server_ = UniqueFd();
    EXPECT_TRUE(Poll());
    EXPECT_EQ(status_.code(), absl::StatusCode::kUnavailable) << status_;
    EXPECT_EQ(Kept(), -1);
  }
}

// A server that takes nothing in: no deadline has passed.
TEST_F(LocalTryTest, AFullConnectionIsUnavailable) {
  const timeval soon = {0, 1000};
  ASSERT_EQ(setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof(soon)), 0);
  const std::string filler(1 << 15, 'x');
  while (send(fd_, filler.data(), filler.size(), 0) > 0) continue;
  request_.frames[0] = filler;
  Run();
  EXPECT_TRUE(Poll());
  EXPECT_EQ(status_.code(), absl::StatusCode::kUnavailable) << status_;
}

}  // namespace
}  // namespace attnd::client
