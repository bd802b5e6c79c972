// Files, folders and sockets for the tests of regions.
#ifndef ATTND_TESTS_REGIONS_REGIONS_H_
#define ATTND_TESTS_REGIONS_REGIONS_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "server/regions/protocol/packet.h"
#include "server/regions/protocol/unique_fd.h"
#include "server/regions/region_table.h"
#include "tests/fakes/temp_folder.h"

namespace attnd::server {

using fakes::TempFolder;

inline constexpr int64_t kPage = 4096;
inline constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

inline regions::UniqueFd NewMemfd(int64_t size_bytes, int seals = kSeals) {
  regions::UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_TRUE(fd.ok());
  EXPECT_EQ(ftruncate(fd.get(), size_bytes), 0);
  EXPECT_EQ(fallocate(fd.get(), 0, 0, size_bytes), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

// A region whatever its file's seals, with a ledger of its own.
inline std::shared_ptr<Region> MapUnchecked(int fd, int64_t size_bytes,
                                            std::shared_ptr<PageLocker> locker = nullptr) {
  auto entry = RegionLedger::New({})->Enter(0, size_bytes, FileId{});
  EXPECT_TRUE(entry.ok()) << entry.status();
  auto region = Region::Map(fd, size_bytes, *std::move(entry), std::move(locker));
  EXPECT_TRUE(region.ok()) << region.status();
  return *std::move(region);
}

inline int64_t OpenFds() {
  int64_t count = 0;
  for ([[maybe_unused]] const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

// Until `condition` holds, for what another thread or process brings about; false after 20 s.
template <typename Condition>
bool Eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// A client's end that says whatever a test likes.
inline regions::UniqueFd RawConnect(const std::string& path) {
  regions::UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const auto address = regions::SocketAddress(path);
  EXPECT_TRUE(address.ok());
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)), 0);
  return fd;
}

}  // namespace attnd::server

#endif  // ATTND_TESTS_REGIONS_REGIONS_H_
