// Clients that die, at any moment.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "client/region.h"
#include "server/regions/protocol/frames.h"
#include "server/regions/region_socket.h"
#include "tests/regions/regions.h"

// Heap in use. Resident memory would tell less: sanitizers keep more and more of what was freed.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#include <sanitizer/allocator_interface.h>
#define ATTND_SANITIZER_HEAP 1
#endif
#endif

namespace attnd::server {
namespace {

using regions::UniqueFd;

constexpr int64_t kRegionBytes = 64 << 10;

std::pair<UniqueFd, UniqueFd> NewPipe() {
  int fds[2];
  EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// tests/region_client as a process of its own; killed at the end at the latest.
class ClientProcess {
 public:
  explicit ClientProcess(const std::string& path) {
    auto [in_read, in_write] = NewPipe();
    auto [out_read, out_write] = NewPipe();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in_read.get(), STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out_write.get(), STDOUT_FILENO);
    std::string arguments[] = {"region_client", path, "instance", std::to_string(kRegionBytes)};
    char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(),
                    arguments[3].data(), nullptr};
    EXPECT_EQ(posix_spawn(&pid_, ATTND_REGION_CLIENT, &actions, nullptr, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    input_ = std::move(in_write);
    output_ = std::move(out_read);
  }
  ~ClientProcess() { Kill(); }

  // Waits until it has registered.
  RegionHandle Handle() {
    RegionHandle handle = {};
    EXPECT_EQ(read(output_.get(), handle.data(), handle.size()),
              static_cast<ssize_t>(handle.size()));
    return handle;
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
  UniqueFd input_;
  UniqueFd output_;
};

int64_t HeapBytes() {
#ifdef ATTND_SANITIZER_HEAP
  return static_cast<int64_t>(__sanitizer_get_current_allocated_bytes());
#else
  return static_cast<int64_t>(mallinfo2().uordblks);
#endif
}

// Mappings of regions in this process, a client's own too.
int64_t MappedRegions() {
  std::ifstream maps("/proc/self/maps");
  int64_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:") != line.npos;
  return count;
}

class RegionRounds : public ::testing::Test {
 protected:
  void SetUp() override {
    RegionSocketOptions options;
    options.path = folder_ / "attnd.sock";
    options.instance_id = "instance";
    auto socket = RegionSocket::Listen(options, table_);
    ASSERT_TRUE(socket.ok()) << socket.status();
    socket_ = *std::move(socket);
  }

  bool AllGone() const {
    return Eventually([this] {
      const RegionCounts counts = table_->counts();
      return socket_->connections() == 0 && counts.regions == 0 && counts.bytes == 0 &&
             counts.leases == 0;
    });
  }

  const TempFolder folder_;
  const std::shared_ptr<RegionTable> table_ = std::make_shared<RegionTable>(RegionLimits());
  std::unique_ptr<RegionSocket> socket_;
};

TEST_F(RegionRounds, AKilledClientsRegionGoes) {
  ClientProcess client(socket_->path());
  const RegionHandle handle = client.Handle();
  EXPECT_EQ(table_->counts().regions, 1);
  EXPECT_EQ(table_->counts().bytes, kRegionBytes);
  EXPECT_TRUE(table_->Pin(handle, 0, 1, Access::kRead).ok());
  client.Kill();
  EXPECT_TRUE(AllGone());
  EXPECT_EQ(table_->Pin(handle, 0, 1, Access::kRead).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RegionRounds, AKilledClientsCallFinishes) {
  ClientProcess client(socket_->path());
  const RegionHandle handle = client.Handle();
  auto in = table_->Pin(handle, 0, 4096, Access::kRead);
  auto out = table_->Pin(handle, 4096, 4096, Access::kWrite);
  ASSERT_TRUE(in.ok() && out.ok());
  client.Kill();
  ASSERT_TRUE(Eventually([this] { return socket_->connections() == 0; }));
  EXPECT_EQ(table_->counts().regions, 1);
  ASSERT_TRUE(GuardedCopy(out->data(), in->data(), 4096, *in).ok());
  EXPECT_EQ(out->data()[0], 77);
  *in = RegionLease();
  *out = RegionLease();
  EXPECT_TRUE(AllGone());
}

// What one client does in a round; each leaves abruptly somewhere on the way.
void OneRound(const std::string& path, std::mt19937& random, RegionTable& table) {
  const auto wait = std::chrono::microseconds(random() % 4000);
  switch (random() % 5) {
    case 0: {  // killed anywhere between its start and its end
      ClientProcess client(path);
      std::this_thread::sleep_for(wait);  // the moment is drawn, and nothing relies on it
      break;
    }
    case 1: {  // killed once it has registered, with a call inside
      ClientProcess client(path);
      auto lease = table.Pin(client.Handle(), 0, kRegionBytes, Access::kWrite);
      ASSERT_TRUE(lease.ok()) << lease.status();
      client.Kill();
      std::memset(lease->data(), 1, kRegionBytes);
      EXPECT_TRUE(lease->status().ok());
      break;
    }
    case 2: {  // connects and leaves
      const UniqueFd client = RawConnect(path);
      break;
    }
    case 3: {  // registers and leaves without its answer
      const UniqueFd client = RawConnect(path);
      regions::RegisterFrame frame;
      frame.size_bytes = kRegionBytes;
      const UniqueFd file = NewMemfd(kRegionBytes);
      EXPECT_TRUE(regions::SendPacket(client.get(), &frame, sizeof(frame), file.get()).ok());
      break;
    }
    default: {
      LocalRegionOptions options;
      options.socket_path = path;
      options.instance_id = "instance";
      options.size_bytes = kRegionBytes;
      const auto region = LocalRegion::Create(options);
      ASSERT_TRUE(region.ok()) << region.status();
      std::memset((*region)->bytes().data(), 2, kRegionBytes);
    }
  }
}

TEST_F(RegionRounds, AThousandRoundsLeaveNothing) {
  constexpr int kRounds = 1000;
  constexpr int kSettling = 100;  // until the allocator and the library have what they keep
  std::mt19937 random(11);
  int64_t fds = 0;
  int64_t heap_bytes = 0;
  for (int round = 0; round < kRounds; ++round) {
    OneRound(socket_->path(), random, *table_);
    if (HasFatalFailure()) return;
    if (round == kSettling) {
      ASSERT_TRUE(AllGone());
      fds = OpenFds();
      heap_bytes = HeapBytes();
    }
  }
  ASSERT_TRUE(AllGone());
  EXPECT_EQ(OpenFds(), fds);
  EXPECT_EQ(MappedRegions(), 0);
  // Less than 5 bytes a round: nothing that a round could leave is as small.
  EXPECT_LT(HeapBytes(), heap_bytes + 4096);
  // And the server still serves.
  ClientProcess client(socket_->path());
  EXPECT_TRUE(table_->Pin(client.Handle(), 0, 1, Access::kRead).ok());
}

}  // namespace
}  // namespace attnd::server
