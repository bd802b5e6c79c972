#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "server/regions/region.h"
#include "server/regions/sigbus_guard.h"
#include "tests/regions/regions.h"

namespace attnd::server {
namespace {

constexpr int64_t kPages = 8;
constexpr int64_t kSize = kPages * kPage;

// A region of an unsealed file, which no client could register, with every byte `value`.
struct Unsealed {
  explicit Unsealed(unsigned char value) {
    auto lease = region->Pin(0, kSize, Access::kWrite);
    std::memset(lease->data(), value, kSize);
  }
  void Shrink(int64_t pages) { ASSERT_EQ(ftruncate(fd.get(), pages * kPage), 0); }

  const regions::UniqueFd fd = NewMemfd(kSize, 0);
  const std::shared_ptr<Region> region = MapUnchecked(fd.get(), kSize);
};

TEST(Sigbus, AMissingPageFailsTheReadAndBreaksTheRegion) {
  Unsealed file(7);
  auto lease = file.region->Pin(0, kSize, Access::kRead);
  ASSERT_TRUE(lease.ok());
  std::vector<unsigned char> copy(kSize);
  ASSERT_TRUE(GuardedCopy(copy.data(), lease->data(), kSize, *lease).ok());
  EXPECT_EQ(copy[kSize - 1], 7);
  file.Shrink(4);
  EXPECT_FALSE(lease->broken());  // nobody has looked yet
  const absl::Status status = GuardedCopy(copy.data(), lease->data(), kSize, *lease);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_TRUE(lease->broken());
  EXPECT_EQ(copy[4 * kPage - 1], 7);
  EXPECT_EQ(copy[4 * kPage], 0);
  EXPECT_EQ(copy[kSize - 1], 0);
  *lease = RegionLease();
  EXPECT_EQ(file.region->Pin(0, 1, Access::kRead).status().code(), absl::StatusCode::kDataLoss);
}

TEST(Sigbus, AMissingPageFailsTheWrite) {
  Unsealed file(7);
  auto lease = file.region->Pin(0, kSize, Access::kWrite);
  file.Shrink(1);
  const std::vector<unsigned char> from(kSize, 9);
  EXPECT_EQ(GuardedCopy(lease->data(), from.data(), kSize, *lease).code(),
            absl::StatusCode::kDataLoss);
}

TEST(Sigbus, OtherRegionsGoOn) {
  Unsealed broken(1);
  Unsealed whole(2);
  auto lost = broken.region->Pin(0, kSize, Access::kRead);
  auto kept = whole.region->Pin(0, kSize, Access::kRead);
  broken.Shrink(0);
  std::vector<unsigned char> copy(kSize);
  EXPECT_FALSE(GuardedCopy(copy.data(), lost->data(), kSize, *lost).ok());
  EXPECT_TRUE(GuardedCopy(copy.data(), kept->data(), kSize, *kept).ok());
  EXPECT_EQ(copy[kSize - 1], 2);
  // A place that another region had does not start out broken.
  *lost = RegionLease();
  Unsealed next(3);
  EXPECT_FALSE(next.region->broken());
}

// F_SEAL_SHRINK does not stop it; the page comes back empty, which is the client's own loss.
TEST(Sigbus, APunchedHoleReadsAsZerosAndHarmsNobody) {
  const regions::UniqueFd fd = NewMemfd(kSize);
  RegionTable table({});
  const auto handle = table.Add(0, fd.get(), kSize);
  ASSERT_TRUE(handle.ok());
  auto lease = table.Pin(*handle, 0, kSize, Access::kWrite);
  std::memset(lease->data(), 5, kSize);
  ASSERT_EQ(fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kPage, kPage), 0);
  EXPECT_EQ(ftruncate(fd.get(), 0), -1);
  EXPECT_EQ(lease->data()[kPage], 0);
  EXPECT_EQ(lease->data()[0], 5);
  EXPECT_TRUE(lease->status().ok());
}

TEST(Sigbus, ManyThreadsMeetTheSameMissingPages) {
  Unsealed file(7);
  auto lease = file.region->Pin(0, kSize, Access::kRead);
  file.Shrink(0);
  std::atomic<int> failed{0};
  std::vector<std::thread> readers;
  readers.reserve(8);
  for (int i = 0; i < 8; ++i) {
    readers.emplace_back([&lease, &failed] {
      std::vector<unsigned char> copy(kSize);
      if (!GuardedCopy(copy.data(), lease->data(), kSize, *lease).ok()) ++failed;
    });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(failed, 8);
}

TEST(Sigbus, GuardsComeAndGoBesideAFault) {
  std::atomic<bool> done{false};
  std::thread others([&done] {
    while (!done) MapUnchecked(NewMemfd(kPage).get(), kPage);
  });
  for (int i = 0; i < 100; ++i) {
    Unsealed file(7);
    auto lease = file.region->Pin(0, kSize, Access::kRead);
    file.Shrink(2);
    std::vector<unsigned char> copy(kSize);
    EXPECT_FALSE(GuardedCopy(copy.data(), lease->data(), kSize, *lease).ok());
  }
  done = true;
  others.join();
}

TEST(Sigbus, GuardsAreBounded) {
  static unsigned char page[kPage];
  std::vector<std::unique_ptr<SigbusGuard>> guards;
  while (true) {
    auto guard = SigbusGuard::New(page, kPage);
    if (!guard.ok()) {
      EXPECT_EQ(guard.status().code(), absl::StatusCode::kResourceExhausted);
      break;
    }
    guards.push_back(*std::move(guard));
  }
  EXPECT_EQ(guards.size(), static_cast<size_t>(SigbusGuard::kMaxGuards));
  guards.pop_back();
  EXPECT_TRUE(SigbusGuard::New(page, kPage).ok());
}

// An address that is missing and that no guard covers.
volatile unsigned char* Unguarded() {
  const regions::UniqueFd fd = NewMemfd(kPage, 0);
  void* const base = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  EXPECT_EQ(ftruncate(fd.get(), 0), 0);
  return static_cast<volatile unsigned char*>(base);
}

void ExitWith7(int, siginfo_t*, void*) { _exit(7); }
void ExitWith8(int) { _exit(8); }

using SigbusDeathTest = ::testing::Test;

// Each in a process of its own, for the handler is put in place once.
TEST(SigbusDeathTest, AFaultElsewhereGoesToTheHandlerBefore) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        struct sigaction action = {};
        action.sa_sigaction = ExitWith7;
        action.sa_flags = SA_SIGINFO;
        sigaction(SIGBUS, &action, nullptr);
        Unsealed file(1);
        file.Shrink(0);
        auto lease = file.region->Pin(0, 1, Access::kRead);
        if (lease->data()[0] != 0) _exit(1);  // this one is survived
        [[maybe_unused]] const unsigned char read = *Unguarded();
      },
      ::testing::ExitedWithCode(7), "");
  EXPECT_EXIT(
      {
        ::signal(SIGBUS, ExitWith8);
        Unsealed file(1);
        [[maybe_unused]] const unsigned char read = *Unguarded();
      },
      ::testing::ExitedWithCode(8), "");
}

TEST(SigbusDeathTest, AFaultElsewhereEndsTheProcessWhereNobodyHandledIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::signal(SIGBUS, SIG_DFL);
        Unsealed file(1);
        [[maybe_unused]] const unsigned char read = *Unguarded();
        _exit(0);
      },
      ::testing::KilledBySignal(SIGBUS), "");
  EXPECT_EXIT(
      {
        ::signal(SIGBUS, SIG_DFL);
        Unsealed file(1);
        raise(SIGBUS);
        _exit(0);
      },
      ::testing::KilledBySignal(SIGBUS), "");
  EXPECT_EXIT(
      {
        ::signal(SIGBUS, SIG_IGN);
        Unsealed file(1);
        raise(SIGBUS);  // ignored, as it was before
        _exit(3);
      },
      ::testing::ExitedWithCode(3), "");
}

}  // namespace
}  // namespace attnd::server
