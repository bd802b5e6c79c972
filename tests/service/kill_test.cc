// Clients that are killed at any moment of a call leave nothing behind. ATTND_KILL_ROUNDS in the
// environment is how many of each way; 40 if it is not there.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>

#include "server/regions/protocol/unique_fd.h"
#include "tests/service/harness.h"

namespace attnd::testing {
namespace {

using regions::UniqueFd;

int Rounds() {
  const char* const rounds = std::getenv("ATTND_KILL_ROUNDS");
  return rounds == nullptr ? 40 : std::atoi(rounds);
}

int64_t OpenFds() {
  int64_t count = 0;
  for ([[maybe_unused]] const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

// tests/kill_client as a process of its own.
class Client {
 public:
  Client(const std::string& address, const std::string& socket_path, const std::string& way) {
    int fds[2];
    EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
    output_ = UniqueFd(fds[0]);
    const UniqueFd theirs(fds[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, theirs.get(), STDOUT_FILENO);
    std::string arguments[] = {"kill_client", address, socket_path, way};
    char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(),
                    arguments[3].data(), nullptr};
    EXPECT_EQ(posix_spawn(&pid_, ATTND_KILL_CLIENT, &actions, nullptr, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Client() { Kill(); }

  // False if it does not come to it.
  bool WaitForFirstCall() const {
    pollfd polled = {output_.get(), POLLIN, 0};
    const auto patience_ms = std::chrono::milliseconds(kPatience).count();
    char byte = 0;
    return poll(&polled, 1, static_cast<int>(patience_ms)) == 1 &&
           read(output_.get(), &byte, 1) == 1;
  }

  void Kill() {
    if (pid_ < 0) return;
    EXPECT_EQ(kill(pid_, SIGKILL), 0);
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    EXPECT_TRUE(WIFSIGNALED(status)) << "it ended by itself";
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  UniqueFd output_;
};

class KillTest : public ::testing::TestWithParam<const char*> {
 protected:
  KillTest() : server_(Options()) {}

  server::ServerOptions Options() {
    char name[] = "/tmp/attnd-test-XXXXXX";
    EXPECT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    server::ServerOptions options = TestOptions();
    options.local_socket = folder_ + "/side.sock";
    return options;
  }
  ~KillTest() override { std::filesystem::remove_all(folder_); }

  ::testing::AssertionResult IsIdle() {
    return Eventually([&] {
      return server_->metrics().received() == server_->metrics().finished() &&
             server_.Metric("attnd_regions") == 0 && server_.Metric("attnd_region_bytes") == 0 &&
             server_.Metric("attnd_region_leases") == 0 &&
             server_.Metric("attnd_region_connections") == 0 &&
             server_.Metric("attnd_call_connections") == 0 &&
             server_.Metric("attnd_pool_used_bytes") == 0 &&
             server_.Metric("attnd_receive_used_bytes") == 0 &&
             server_.Metric("attnd_queue_requests") == 0;
    });
  }

  std::string folder_;
  TestServer server_;
};

TEST_P(KillTest, NothingIsLeftAndTheNextCallIsRight) {
  const v1::ComputeRequest request = MakeRequest({});
  ASSERT_TRUE(IsRight(server_.Compute(request), request));
  std::mt19937 random(1);
  const int64_t fds = OpenFds();
  for (int round = 0; round < Rounds(); ++round) {
    Client client(server_.address(), folder_ + "/side.sock", GetParam());
    // One in four while it starts: it connects, registers, sends its first call.
    const bool starts = round % 4 == 0;
    ASSERT_TRUE(starts || client.WaitForFirstCall());
    // A call takes a few milliseconds. The moment is the point, so this is no wait for something.
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    client.Kill();
    if (round % 10 != 9) continue;
    ASSERT_TRUE(IsIdle()) << "after " << round;
    ASSERT_TRUE(IsRight(server_.Compute(request), request)) << "after " << round;
  }
  EXPECT_TRUE(IsIdle());
  EXPECT_TRUE(IsRight(server_.Compute(request), request));
  EXPECT_TRUE(Eventually([&] { return OpenFds() <= fds; }));
}

INSTANTIATE_TEST_SUITE_P(Ways, KillTest, ::testing::Values("unary", "stream", "region", "in_place"),
                         [](const auto& way) { return std::string(way.param); });

}  // namespace
}  // namespace attnd::testing
