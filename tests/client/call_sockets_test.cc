#include "client/call_sockets.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

namespace attnd::client {
namespace {

using regions::UniqueFd;

// Two ends of a connection.
std::pair<UniqueFd, UniqueFd> Connection() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// Nobody listens there.
LocalServer Nobody(const std::string& instance_id) { return {"/nowhere/attnd.sock", instance_id}; }

TEST(CallSockets, KeepsTheLastUsedOfEachServer) {
  CallSockets sockets;
  auto [first, first_end] = Connection();
  auto [second, second_end] = Connection();
  const int first_fd = first.get();
  const int second_fd = second.get();
  sockets.GiveBack(Nobody("a"), std::move(first));
  sockets.GiveBack(Nobody("a"), std::move(second));
  EXPECT_FALSE(sockets.Take(Nobody("b"), absl::InfiniteDuration()).ok());
  const UniqueFd taken = sockets.Take(Nobody("a"), absl::ZeroDuration());
  EXPECT_EQ(taken.get(), second_fd);
  EXPECT_EQ(sockets.Take(Nobody("a"), absl::ZeroDuration()).get(), first_fd);
  EXPECT_FALSE(sockets.Take(Nobody("a"), absl::ZeroDuration()).ok());
}

TEST(CallSockets, PassesOverWhatTheServerHasEndedOrSpokenOn) {
  CallSockets sockets;
  auto [ended, ended_end] = Connection();
  auto [spoken, spoken_end] = Connection();
  sockets.GiveBack(Nobody("a"), std::move(ended));
  sockets.GiveBack(Nobody("a"), std::move(spoken));
  ended_end = UniqueFd();
  ASSERT_EQ(send(spoken_end.get(), "x", 1, 0), 1);
  EXPECT_FALSE(sockets.Take(Nobody("a"), absl::ZeroDuration()).ok());
}

// A server that was started anew many times has left connections of its earlier lives.
TEST(CallSockets, TheOldestMakeRoom) {
  CallSockets sockets;
  std::vector<UniqueFd> ends;
  for (int i = 0; i < 1000; ++i) {
    auto [socket, end] = Connection();
    const int fd = socket.get();
    sockets.GiveBack(Nobody(std::to_string(i)), std::move(socket));
    UniqueFd taken = sockets.Take(Nobody(std::to_string(i)), absl::ZeroDuration());
    ASSERT_EQ(taken.get(), fd) << i;
    sockets.GiveBack(Nobody(std::to_string(i)), std::move(taken));
    ends.push_back(std::move(end));
    if (ends.size() > 100) ends.erase(ends.begin());
  }
}

}  // namespace
}  // namespace attnd::client
