#include "server/regions/region_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/regions/protocol/frames.h"
#include "server/regions/protocol/socket_path.h"
#include "tests/regions/regions.h"

namespace attnd::server {
namespace {

using regions::AnswerFrame;
using regions::FrameType;
using regions::HelloFrame;
using regions::RegisterCudaFrame;
using regions::RegisterFrame;
using regions::UniqueFd;
using ::testing::HasSubstr;

// A server's end in a folder of its own.
struct Harness {
  explicit Harness(const std::function<void(RegionSocketOptions&)>& change = [](auto&) {}) {
    RegionSocketOptions options;
    options.path = folder / "attnd.sock";
    options.instance_id = "instance-1";
    change(options);
    auto listening = RegionSocket::Listen(options, table);
    EXPECT_TRUE(listening.ok()) << listening.status();
    socket = *std::move(listening);
  }
  bool AllGone() const {
    return Eventually([this] {
      const RegionCounts counts = table->counts();
      return socket->connections() == 0 && counts.regions == 0 && counts.bytes == 0;
    });
  }

  const TempFolder folder;
  const std::shared_ptr<RegionTable> table = std::make_shared<RegionTable>(RegionLimits());
  std::unique_ptr<RegionSocket> socket;
};

template <typename Frame>
Frame MustReceive(int socket) {
  Frame frame;
  const auto packet = regions::ReceivePacket(socket, &frame, sizeof(frame));
  EXPECT_TRUE(packet.ok()) << packet.status();
  EXPECT_EQ(packet->size_bytes, static_cast<int64_t>(sizeof(frame)));
  EXPECT_FALSE(packet->truncated);
  EXPECT_EQ(frame.head.magic, regions::kFrameMagic);
  EXPECT_EQ(frame.head.type, Frame().head.type);
  return frame;
}

// Whether the server has ended the connection; what it still says is passed over.
bool Ended(int socket) {
  while (true) {
    AnswerFrame frame;
    const auto packet = regions::ReceivePacket(socket, &frame, sizeof(frame));
    if (!packet.ok() || packet->size_bytes == 0) return true;
  }
}

UniqueFd GreetedClient(const Harness& harness) {
  UniqueFd client = RawConnect(harness.socket->path());
  MustReceive<HelloFrame>(client.get());
  return client;
}

AnswerFrame Register(int socket, int fd, int64_t size_bytes) {
  RegisterFrame frame;
  frame.size_bytes = size_bytes;
  EXPECT_TRUE(regions::SendPacket(socket, &frame, sizeof(frame), fd).ok());
  return MustReceive<AnswerFrame>(socket);
}

int Code(absl::StatusCode code) { return static_cast<int>(code); }

TEST(RegionSocket, GreetsRegistersAndForgets) {
  Harness harness;
  UniqueFd client = RawConnect(harness.socket->path());
  EXPECT_STREQ(MustReceive<HelloFrame>(client.get()).instance_id, "instance-1");
  const AnswerFrame first = Register(client.get(), NewMemfd(kPage).get(), kPage);
  const AnswerFrame second = Register(client.get(), NewMemfd(2 * kPage).get(), 2 * kPage);
  EXPECT_EQ(first.code, 0);
  EXPECT_EQ(second.code, 0);
  EXPECT_EQ(harness.table->counts().regions, 2);
  EXPECT_EQ(harness.table->counts().bytes, 3 * kPage);
  EXPECT_EQ(harness.socket->connections(), 1);
  auto lease = harness.table->Pin(second.handle, 0, 2 * kPage, Access::kWrite);
  ASSERT_TRUE(lease.ok()) << lease.status();
  client = UniqueFd();
  ASSERT_TRUE(Eventually([&harness] { return harness.socket->connections() == 0; }));
  EXPECT_EQ(harness.table->counts().regions, 1);
  EXPECT_EQ(harness.table->Pin(second.handle, 0, 1, Access::kRead).status().code(),
            absl::StatusCode::kNotFound);
  std::memset(lease->data(), 1, 2 * kPage);  // a call's range stays
  *lease = RegionLease();
  EXPECT_TRUE(harness.AllGone());
}

// Triton #3428: client B ends client A's regions.
TEST(RegionSocket, AConnectionEndsItsOwnRegionsOnly) {
  Harness harness;
  const UniqueFd a = GreetedClient(harness);
  const AnswerFrame kept = Register(a.get(), NewMemfd(kPage).get(), kPage);
  {
    const UniqueFd b = GreetedClient(harness);
    EXPECT_EQ(Register(b.get(), NewMemfd(kPage).get(), kPage).code, 0);
  }
  ASSERT_TRUE(Eventually([&harness] { return harness.table->counts().regions == 1; }));
  EXPECT_TRUE(harness.table->Pin(kept.handle, 0, 1, Access::kRead).ok());
}

TEST(RegionSocket, MemoryOnAGpuIsRefusedWhereNoneIsTaken) {
  Harness harness;
  const UniqueFd client = GreetedClient(harness);
  const UniqueFd file = NewMemfd(kPage);
  for (const int fd : {-1, file.get()}) {
    RegisterCudaFrame frame;
    ASSERT_TRUE(regions::SendPacket(client.get(), &frame, sizeof(frame), fd).ok());
    const AnswerFrame answer = MustReceive<AnswerFrame>(client.get());
    EXPECT_EQ(answer.code, Code(absl::StatusCode::kPermissionDenied));
    EXPECT_THAT(answer.text, HasSubstr("--allow_cuda_ipc"));
  }
  EXPECT_EQ(harness.table->refusals().cuda, 2);
  // The connection stays.
  EXPECT_EQ(Register(client.get(), file.get(), kPage).code, 0);
}

TEST(RegionSocket, AFrameOfAnotherKindsSizeEndsTheConnection) {
  Harness harness;
  const UniqueFd client = GreetedClient(harness);
  RegisterFrame frame;
  frame.head.type = FrameType::kRegisterCuda;
  ASSERT_TRUE(regions::SendPacket(client.get(), &frame, sizeof(frame)).ok());
  const AnswerFrame answer = MustReceive<AnswerFrame>(client.get());
  EXPECT_EQ(answer.code, Code(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(answer.text, HasSubstr("a frame has 168 bytes, got 16"));
  EXPECT_TRUE(Ended(client.get()));
}

TEST(RegionSocket, ARefusedFileKeepsTheConnection) {
  Harness harness;
  const UniqueFd client = GreetedClient(harness);
  const AnswerFrame answer = Register(client.get(), NewMemfd(kPage, 0).get(), kPage);
  EXPECT_EQ(answer.code, Code(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(answer.text, HasSubstr("F_SEAL_SHRINK"));
  EXPECT_EQ(answer.handle, RegionHandle());
  EXPECT_EQ(Register(client.get(), NewMemfd(kPage).get(), 2 * kPage).code,
            Code(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(Register(client.get(), NewMemfd(kPage).get(), kPage).code, 0);
  EXPECT_EQ(harness.socket->refused_connections(), 0);
}

TEST(RegionSocket, RegionsAndConnectionsAreBounded) {
  Harness harness([](RegionSocketOptions& options) {
    options.max_connections = 2;
    options.max_regions_per_connection = 1;
  });
  const UniqueFd first = GreetedClient(harness);
  EXPECT_EQ(Register(first.get(), NewMemfd(kPage).get(), kPage).code, 0);
  const AnswerFrame more = Register(first.get(), NewMemfd(kPage).get(), kPage);
  EXPECT_EQ(more.code, Code(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(more.text, HasSubstr("1 regions"));
  UniqueFd second = GreetedClient(harness);
  const UniqueFd third = RawConnect(harness.socket->path());
  const AnswerFrame turned_away = MustReceive<AnswerFrame>(third.get());
  EXPECT_EQ(turned_away.code, Code(absl::StatusCode::kResourceExhausted));
  EXPECT_TRUE(Ended(third.get()));
  second = UniqueFd();
  ASSERT_TRUE(Eventually([&harness] { return harness.socket->connections() == 1; }));
  const UniqueFd fourth = GreetedClient(harness);
}

// That the kernel reports another user's process as such cannot be shown as one user; that it is
// turned away can.
TEST(RegionSocket, OtherUsersAreTurnedAway) {
  Harness harness([](RegionSocketOptions& options) {
    options.peer_uid = [](int) -> absl::StatusOr<uid_t> { return geteuid() + 1; };
  });
  const UniqueFd client = RawConnect(harness.socket->path());
  const AnswerFrame answer = MustReceive<AnswerFrame>(client.get());
  EXPECT_EQ(answer.code, Code(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(answer.text, HasSubstr("must be user " + std::to_string(geteuid())));
  EXPECT_TRUE(Ended(client.get()));
  EXPECT_EQ(harness.socket->connections(), 0);
  EXPECT_EQ(harness.socket->refused_connections(), 1);
}

TEST(RegionSocket, APeerThatCannotBeReadIsTurnedAway) {
  Harness harness([](RegionSocketOptions& options) {
    options.peer_uid = [](int) -> absl::StatusOr<uid_t> {
      return absl::UnavailableError("no credentials");
    };
  });
  const UniqueFd client = RawConnect(harness.socket->path());
  EXPECT_STREQ(MustReceive<AnswerFrame>(client.get()).text, "no credentials");
  EXPECT_TRUE(Ended(client.get()));
}

// Sends `count` descriptors with one frame.
void SendManyFds(int socket, int count) {
  RegisterFrame frame;
  frame.size_bytes = kPage;
  const UniqueFd file = NewMemfd(kPage);
  std::vector<char> control(CMSG_SPACE(sizeof(int) * count));
  iovec piece = {&frame, sizeof(frame)};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int) * count);
  for (int i = 0; i < count; ++i) {
    const int fd = file.get();
    std::memcpy(CMSG_DATA(head) + i * sizeof(int), &fd, sizeof(int));
  }
  ASSERT_EQ(sendmsg(socket, &message, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(frame)));
}

void SendBytes(int socket, const std::string& bytes, int fd = -1) {
  ASSERT_TRUE(
      regions::SendPacket(socket, bytes.data(), static_cast<int64_t>(bytes.size()), fd).ok());
}

void SendFrame(int socket, const RegisterFrame& frame, int fd = -1) {
  SendBytes(socket, std::string(reinterpret_cast<const char*>(&frame), sizeof(frame)), fd);
}

TEST(RegionSocket, MalformedFramesEndTheirConnectionOnly) {
  Harness harness;
  const UniqueFd bystander = GreetedClient(harness);
  const AnswerFrame kept = Register(bystander.get(), NewMemfd(kPage).get(), kPage);
  const UniqueFd file = NewMemfd(kPage);
  RegisterFrame good;
  good.size_bytes = kPage;
  const std::function<void(int)> bad[] = {
      [](int s) { SendBytes(s, "x"); },
      [](int s) { SendBytes(s, std::string(15, '\0')); },
      [](int s) { SendBytes(s, std::string(17, '\0')); },
      [](int s) { SendBytes(s, std::string(100000, 'A')); },
      [&](int s) { SendBytes(s, std::string(16, 'A'), file.get()); },
      [&](int s) { SendBytes(s, "short", file.get()); },
      [&](int s) { SendFrame(s, good); },  // no descriptor
      [&](int s) { SendManyFds(s, 2); },
      [&](int s) { SendManyFds(s, 3); },
      [&](int s) { SendManyFds(s, 200); },
      [&](int s) {
        RegisterFrame frame = good;
        frame.head.magic ^= 1;
        SendFrame(s, frame, file.get());
      },
      [&](int s) {
        RegisterFrame frame = good;
        frame.head.version = 2;
        SendFrame(s, frame, file.get());
      },
      [&](int s) {
        RegisterFrame frame = good;
        frame.head.type = FrameType::kAnswer;
        SendFrame(s, frame, file.get());
      },
  };
  const int64_t fds = OpenFds();
  int64_t refused = 0;
  for (const auto& send : bad) {
    {
      const UniqueFd client = GreetedClient(harness);
      send(client.get());
      const AnswerFrame answer = MustReceive<AnswerFrame>(client.get());
      EXPECT_NE(answer.code, 0);
      EXPECT_STRNE(answer.text, "");
      EXPECT_TRUE(Ended(client.get()));
      EXPECT_EQ(harness.socket->refused_connections(), ++refused);
    }
    ASSERT_TRUE(Eventually([&harness] { return harness.socket->connections() == 1; }));
    EXPECT_EQ(OpenFds(), fds);
  }
  EXPECT_TRUE(harness.table->Pin(kept.handle, 0, kPage, Access::kWrite).ok());
  EXPECT_EQ(Register(bystander.get(), file.get(), kPage).code, 0);
}

TEST(RegionSocket, RandomBytesEndTheirConnectionOnly) {
  Harness harness;
  std::mt19937 random(5);
  const int64_t fds = OpenFds();
  for (int round = 0; round < 300; ++round) {
    const UniqueFd client = GreetedClient(harness);
    RegisterFrame frame;
    frame.size_bytes = kPage;
    std::string bytes(reinterpret_cast<const char*>(&frame), sizeof(frame));
    bytes.resize(1 + random() % 24, '\0');
    for (int i = 0; i < 2; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    const UniqueFd file = NewMemfd(kPage);
    SendBytes(client.get(), bytes, random() % 2 == 0 ? file.get() : -1);
    MustReceive<AnswerFrame>(client.get());
  }
  EXPECT_TRUE(harness.AllGone());
  EXPECT_EQ(OpenFds(), fds);
}

TEST(RegionSocket, AClientThatTakesNoAnswersIsLetGo) {
  Harness harness;
  const UniqueFd client = RawConnect(harness.socket->path());
  RegisterFrame frame;  // of no size: refused
  const UniqueFd file = NewMemfd(kPage);
  while (regions::SendPacket(client.get(), &frame, sizeof(frame), file.get()).ok()) {
  }
  EXPECT_TRUE(harness.AllGone());
}

TEST(RegionSocket, ItsPathIsThisUsersAlone) {
  Harness harness;
  struct stat info;
  ASSERT_EQ(lstat(harness.socket->path().c_str(), &info), 0);
  EXPECT_TRUE(S_ISSOCK(info.st_mode));
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_EQ(info.st_uid, geteuid());
}

TEST(RegionSocket, ALiveSocketIsNotTakenOver) {
  Harness harness;
  RegionSocketOptions options;
  options.path = harness.socket->path();
  options.instance_id = "instance-2";
  EXPECT_EQ(RegionSocket::Listen(options, harness.table).status().code(),
            absl::StatusCode::kUnavailable);
  const UniqueFd client = RawConnect(options.path);
  EXPECT_STREQ(MustReceive<HelloFrame>(client.get()).instance_id, "instance-1");
}

TEST(RegionSocket, ADeadSocketIsReplacedAndAFileIsNot) {
  const TempFolder folder;
  RegionSocketOptions options;
  options.path = folder / "s";
  options.instance_id = "i";
  const auto table = std::make_shared<RegionTable>(RegionLimits());
  {
    const UniqueFd dead(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const auto address = regions::SocketAddress(options.path);
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)), 0);
  }
  EXPECT_TRUE(RegionSocket::Listen(options, table).ok());
  EXPECT_FALSE(std::filesystem::exists(options.path));  // gone with its server
  const UniqueFd file(open(options.path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  EXPECT_EQ(RegionSocket::Listen(options, table).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(std::filesystem::exists(options.path));
}

TEST(RegionSocket, TwoThatStartAtOnceDoNotRemoveEachOther) {
  const TempFolder folder;
  RegionSocketOptions options;
  options.path = folder / "s";
  options.instance_id = "i";
  const auto table = std::make_shared<RegionTable>(RegionLimits());
  const UniqueFd other(open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(flock(other.get(), LOCK_EX), 0);
  const absl::Status status = RegionSocket::Listen(options, table).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("starting"));
  ASSERT_EQ(flock(other.get(), LOCK_UN), 0);
  EXPECT_TRUE(RegionSocket::Listen(options, table).ok());
}

TEST(RegionSocket, ASocketThatTookItsPlaceIsLeftAlone) {
  Harness first;
  const std::string path = first.socket->path();
  ASSERT_EQ(unlink(path.c_str()), 0);
  RegionSocketOptions options;
  options.path = path;
  options.instance_id = "instance-2";
  const auto second = RegionSocket::Listen(options, first.table);
  ASSERT_TRUE(second.ok());
  first.socket.reset();
  const UniqueFd client = RawConnect(path);
  EXPECT_STREQ(MustReceive<HelloFrame>(client.get()).instance_id, "instance-2");
}

TEST(RegionSocket, BadOptionsAreNamed) {
  const auto table = std::make_shared<RegionTable>(RegionLimits());
  RegionSocketOptions options;
  options.instance_id = std::string(64, 'i');
  EXPECT_THAT(std::string(RegionSocket::Listen(options, table).status().message()),
              HasSubstr("instance_id has 1 to 63 bytes, got 64"));
  options.instance_id = "i";
  options.path = "/tmp/" + std::string(103, 'x');
  EXPECT_THAT(std::string(RegionSocket::Listen(options, table).status().message()),
              HasSubstr("1 to 107 bytes, got 108"));
  options.path = "/no/such/folder/s";
  EXPECT_FALSE(RegionSocket::Listen(options, table).ok());
}

TEST(RegionSocket, ItsEndEndsRegionsAndConnections) {
  Harness harness;
  const int64_t fds_of_server = 2;  // listener and eventfd
  const UniqueFd client = GreetedClient(harness);
  EXPECT_EQ(Register(client.get(), NewMemfd(kPage).get(), kPage).code, 0);
  const int64_t fds = OpenFds();
  harness.socket.reset();
  EXPECT_EQ(harness.table->counts().regions, 0);
  EXPECT_TRUE(Ended(client.get()));
  EXPECT_EQ(OpenFds(), fds - fds_of_server - 1);
}

TEST(SocketPath, TheRuntimeFolderIsTheFirstThatThereIs) {
  const TempFolder folder;
  EXPECT_EQ(regions::RuntimeFolder("/run/x", folder.path(), 7), "/run/x");
  EXPECT_EQ(regions::RuntimeFolder("", folder.path(), 7), "/tmp/attnd-7");
  EXPECT_EQ(regions::RuntimeFolder("relative", folder.path(), 7), "/tmp/attnd-7");
  std::filesystem::create_directory(folder / "7");
  EXPECT_EQ(regions::RuntimeFolder("", folder.path(), 7), folder / "7");
}

TEST(SocketPath, AFolderThatOthersReachIsRefused) {
  const TempFolder folder;
  const std::string path = folder / "runtime";
  EXPECT_TRUE(regions::PreparePrivateFolder(path, geteuid()).ok());
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  EXPECT_TRUE(regions::PreparePrivateFolder(path, geteuid()).ok());
  EXPECT_THAT(std::string(regions::PreparePrivateFolder(path, geteuid() + 1).message()),
              HasSubstr("belongs to user"));
  for (const mode_t mode : {0701, 0710, 0720, 0704, 0777}) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    EXPECT_EQ(regions::PreparePrivateFolder(path, geteuid()).code(),
              absl::StatusCode::kFailedPrecondition)
        << mode;
  }
  ASSERT_EQ(chmod(path.c_str(), 0700), 0);
  ASSERT_EQ(symlink(path.c_str(), (folder / "link").c_str()), 0);
  EXPECT_THAT(std::string(regions::PreparePrivateFolder(folder / "link", geteuid()).message()),
              HasSubstr("no folder"));
}

TEST(SocketPath, TheDefaultSocketIsMadeInTheRuntimeFolder) {
  const TempFolder folder;
  ASSERT_EQ(setenv("XDG_RUNTIME_DIR", (folder / "run").c_str(), 1),
            0);  // NOLINT(concurrency-mt-unsafe)
  Harness harness([](RegionSocketOptions& options) { options.path = ""; });
  EXPECT_EQ(harness.socket->path(), folder / "run/attnd.sock");
  const UniqueFd client = GreetedClient(harness);
  ASSERT_EQ(unsetenv("XDG_RUNTIME_DIR"), 0);  // NOLINT(concurrency-mt-unsafe)
}

}  // namespace
}  // namespace attnd::server
