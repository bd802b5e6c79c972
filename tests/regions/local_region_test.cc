#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "client/region.h"
#include "server/regions/protocol/frames.h"
#include "server/regions/region_socket.h"
#include "tests/regions/regions.h"

namespace attnd::server {
namespace {

using regions::AnswerFrame;
using regions::HelloFrame;
using regions::UniqueFd;
using ::testing::HasSubstr;

class LocalRegionTest : public ::testing::Test {
 protected:
  void Listen(const RegionLimits& limits = {}) {
    table_ = std::make_shared<RegionTable>(limits);
    RegionSocketOptions options;
    options.path = path_;
    options.instance_id = "this-one";
    auto socket = RegionSocket::Listen(options, table_);
    ASSERT_TRUE(socket.ok()) << socket.status();
    socket_ = *std::move(socket);
  }

  LocalRegionOptions Options(int64_t size_bytes = kPage) const {
    LocalRegionOptions options;
    options.socket_path = path_;
    options.instance_id = "this-one";
    options.size_bytes = size_bytes;
    return options;
  }

  absl::Status Error(const LocalRegionOptions& options) const {
    return LocalRegion::Create(options).status();
  }

  const TempFolder folder_;
  const std::string path_ = folder_ / "attnd.sock";
  std::shared_ptr<RegionTable> table_;
  std::unique_ptr<RegionSocket> socket_;
};

TEST_F(LocalRegionTest, BothEndsSeeOneMemory) {
  Listen();
  auto region = LocalRegion::Create(Options(3 * kPage - 5));
  ASSERT_TRUE(region.ok()) << region.status();
  const absl::Span<unsigned char> bytes = (*region)->bytes();
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), 3 * kPage);
  EXPECT_EQ(bytes[0], 0);
  bytes[kPage] = 11;
  {
    auto in = table_->Pin((*region)->handle(), kPage, 1, Access::kRead);
    auto out = table_->Pin((*region)->handle(), 2 * kPage, 1, Access::kWrite);
    ASSERT_TRUE(in.ok() && out.ok());
    out->data()[0] = static_cast<unsigned char>(in->data()[0] + 1);
  }
  EXPECT_EQ(bytes[2 * kPage], 12);
  EXPECT_TRUE((*region)->connected());
  region->reset();
  // A connection's regions go before it does.
  EXPECT_TRUE(Eventually([this] { return table_->counts().regions == 0; }));
  EXPECT_TRUE(Eventually([this] { return socket_->connections() == 0; }));
}

TEST_F(LocalRegionTest, AServerThatLeavesIsNoticedAndTheMemoryStays) {
  Listen();
  auto region = LocalRegion::Create(Options());
  ASSERT_TRUE(region.ok()) << region.status();
  socket_.reset();
  EXPECT_FALSE((*region)->connected());
  std::memset((*region)->bytes().data(), 3, kPage);
}

TEST_F(LocalRegionTest, AnotherInstanceIsRefused) {
  Listen();
  LocalRegionOptions options = Options();
  options.instance_id = "that-one";
  const absl::Status status = Error(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("instance this-one's"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("instance that-one"));
}

TEST_F(LocalRegionTest, NoServerIsNotFound) {
  EXPECT_EQ(Error(Options()).code(), absl::StatusCode::kNotFound);
  {
    const UniqueFd dead(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const auto address = regions::SocketAddress(path_);
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)), 0);
  }
  EXPECT_EQ(Error(Options()).code(), absl::StatusCode::kNotFound);
}

TEST_F(LocalRegionTest, TheServersRefusalIsTheError) {
  Listen({.max_owner_bytes = kPage});
  const int64_t fds = OpenFds();
  const absl::Status status = Error(Options(2 * kPage));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_region_bytes 4096"));
  EXPECT_TRUE(Eventually([this] { return socket_->connections() == 0; }));
  EXPECT_EQ(OpenFds(), fds);
  EXPECT_TRUE(LocalRegion::Create(Options(kPage)).ok());
}

TEST_F(LocalRegionTest, BadOptionsAreRefused) {
  Listen();
  for (const int64_t size : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_EQ(Error(Options(size)).code(), absl::StatusCode::kInvalidArgument) << size;
  }
  LocalRegionOptions options = Options();
  options.timeout = absl::ZeroDuration();
  EXPECT_EQ(Error(options).code(), absl::StatusCode::kInvalidArgument);
  options = Options();
  options.socket_path = std::string(200, 'x');
  EXPECT_EQ(Error(options).code(), absl::StatusCode::kInvalidArgument);
  // More than any machine has.
  EXPECT_EQ(Error(Options(int64_t{1} << 60)).code(), absl::StatusCode::kResourceExhausted);
}

// A server that says what a test likes.
class PuppetServer {
 public:
  PuppetServer(const std::string& path, const std::string& greeting)
      : listener_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    const auto address = regions::SocketAddress(path);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)),
              0);
    EXPECT_EQ(listen(listener_.get(), 1), 0);
    thread_ = std::thread([this, greeting] {
      const UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!greeting.empty()) {
        EXPECT_TRUE(regions::SendPacket(client.get(), greeting.data(),
                                        static_cast<int64_t>(greeting.size()))
                        .ok());
      }
      char byte;  // until the client leaves
      EXPECT_TRUE(regions::ReceivePacket(client.get(), &byte, 1).ok());
    });
  }
  ~PuppetServer() { thread_.join(); }

 private:
  const UniqueFd listener_;
  std::thread thread_;
};

template <typename Frame>
std::string Bytes(const Frame& frame) {
  return std::string(reinterpret_cast<const char*>(&frame), sizeof(frame));
}

TEST_F(LocalRegionTest, AServerThatSaysNothingTimesOut) {
  const PuppetServer server(path_, "");
  LocalRegionOptions options = Options();
  options.timeout = absl::Milliseconds(5);
  EXPECT_EQ(Error(options).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(LocalRegionTest, AStrangerIsToldFromAServer) {
  const PuppetServer server(path_, "SSH-2.0-whatever\r\n");
  const absl::Status status = Error(Options());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no server of attnd's"));
}

TEST_F(LocalRegionTest, AnotherVersionIsNamed) {
  HelloFrame hello;
  hello.head.version = 9;
  const PuppetServer server(path_, Bytes(hello) + "and what version 9 adds");
  EXPECT_THAT(std::string(Error(Options()).message()),
              HasSubstr("speaks version 9 of the protocol, must be 1"));
}

TEST_F(LocalRegionTest, ABriefFrameIsNoHello) {
  const PuppetServer server(path_, Bytes(HelloFrame()).substr(0, 20));
  EXPECT_EQ(Error(Options()).code(), absl::StatusCode::kInternal);
}

TEST_F(LocalRegionTest, TextsNeedNoEnd) {
  AnswerFrame answer;
  answer.code = static_cast<int32_t>(absl::StatusCode::kPermissionDenied);
  std::memset(answer.text, 'a', sizeof(answer.text));
  const PuppetServer server(path_, Bytes(answer));
  const absl::Status status = Error(Options());
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(status.message().size(), sizeof(answer.text));
}

}  // namespace
}  // namespace attnd::server
