#include "server/regions/region.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "server/regions/region_table.h"
#include "tests/regions/regions.h"

namespace attnd::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr uid_t kUser = 1000;
constexpr uid_t kOther = 1001;

class FakeLocker : public PageLocker {
 public:
  absl::Status Lock(void* memory, int64_t size_bytes) override {
    if (!answer.ok()) return answer;
    locked.insert(memory);
    locked_bytes += size_bytes;
    return absl::OkStatus();
  }
  void Unlock(void* memory) override { EXPECT_EQ(locked.erase(memory), 1u); }

  absl::Status answer;
  std::set<void*> locked;
  int64_t locked_bytes = 0;
};

void ExpectError(const absl::Status& status, absl::StatusCode code, const char* text) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

void ExpectCounts(const RegionTable& table, int64_t regions, int64_t bytes, int64_t leases) {
  EXPECT_EQ(table.counts().regions, regions);
  EXPECT_EQ(table.counts().bytes, bytes);
  EXPECT_EQ(table.counts().leases, leases);
}

TEST(RegionFile, EveryMissingSealIsNamed) {
  const std::pair<int, const char*> seals[] = {
      {F_SEAL_SHRINK, "F_SEAL_SHRINK"}, {F_SEAL_GROW, "F_SEAL_GROW"}, {F_SEAL_SEAL, "F_SEAL_SEAL"}};
  EXPECT_TRUE(CheckRegionFile(NewMemfd(kPage).get(), kPage).ok());
  for (const auto& [seal, name] : seals) {
    const regions::UniqueFd fd = NewMemfd(kPage, kSeals & ~seal);
    const absl::Status status = CheckRegionFile(fd.get(), kPage).status();
    ExpectError(status, absl::StatusCode::kInvalidArgument, name);
    for (const auto& [other, other_name] : seals) {
      if (other == seal) continue;
      EXPECT_THAT(std::string(status.message()), Not(HasSubstr(other_name)));
    }
  }
  const absl::Status none = CheckRegionFile(NewMemfd(kPage, 0).get(), kPage).status();
  EXPECT_THAT(std::string(none.message()),
              AllOf(HasSubstr("SHRINK"), HasSubstr("GROW"), HasSubstr("F_SEAL_SEAL")));
}

TEST(RegionFile, FilesOfOtherKindsAreRefused) {
  const TempFolder folder;
  const regions::UniqueFd plain(open((folder / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  EXPECT_FALSE(CheckRegionFile(plain.get(), kPage).ok());
  const regions::UniqueFd folder_fd(open(folder.path().c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(CheckRegionFile(folder_fd.get(), kPage).ok());
  int pipe_fds[2];
  ASSERT_EQ(pipe2(pipe_fds, O_CLOEXEC), 0);
  const regions::UniqueFd in(pipe_fds[0]);
  const regions::UniqueFd out(pipe_fds[1]);
  EXPECT_FALSE(CheckRegionFile(in.get(), kPage).ok());
  ExpectError(CheckRegionFile(NewMemfd(kPage, kSeals | F_SEAL_WRITE).get(), kPage).status(),
              absl::StatusCode::kInvalidArgument, "against writing");
  // Never reserved: where there are no huge pages, mapping it would fail; where there are, the
  // guard's small page would not fit.
  const regions::UniqueFd huge(memfd_create("h", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (huge.ok() && ftruncate(huge.get(), 2 << 20) == 0 &&
      fcntl(huge.get(), F_ADD_SEALS, kSeals) == 0) {
    ExpectError(CheckRegionFile(huge.get(), 2 << 20).status(), absl::StatusCode::kInvalidArgument,
                "usual size");
  }
}

TEST(RegionFile, TheSizeIsCheckedAgainstTheFile) {
  const regions::UniqueFd fd = NewMemfd(2 * kPage);
  EXPECT_TRUE(CheckRegionFile(fd.get(), 2 * kPage).ok());
  ExpectError(CheckRegionFile(fd.get(), 3 * kPage).status(), absl::StatusCode::kInvalidArgument,
              "size_bytes is 12288, the file has 8192");
  for (const int64_t size : {kPage, int64_t{0}, int64_t{-1}, -kPage, int64_t{1}, kMax, -kMax - 1}) {
    EXPECT_EQ(CheckRegionFile(fd.get(), size).status().code(), absl::StatusCode::kInvalidArgument)
        << size;
  }
}

// Were it mapped, touching its pages would take as much memory as the client pleases.
TEST(RegionFile, AFileWithoutMemoryIsRefused) {
  const regions::UniqueFd fd(memfd_create("empty", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(fd.get(), int64_t{1} << 50), 0);
  ASSERT_EQ(fallocate(fd.get(), 0, 0, kPage), 0);
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, kSeals), 0);
  ExpectError(CheckRegionFile(fd.get(), int64_t{1} << 50).status(),
              absl::StatusCode::kInvalidArgument, "memory for 4096 of its 1125899906842624 bytes");
}

TEST(Region, IsTheClientsMemory) {
  const regions::UniqueFd fd = NewMemfd(4 * kPage);
  auto* const client = static_cast<unsigned char*>(
      mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
  ASSERT_NE(client, MAP_FAILED);
  RegionTable table({});
  const auto handle = table.Add(kUser, fd.get(), 4 * kPage);
  ASSERT_TRUE(handle.ok()) << handle.status();
  client[kPage] = 42;
  auto in = table.Pin(*handle, kPage, 100, Access::kRead);
  auto out = table.Pin(*handle, 2 * kPage, 100, Access::kWrite);
  ASSERT_TRUE(in.ok() && out.ok());
  EXPECT_EQ(in->size_bytes(), 100);
  ASSERT_TRUE(GuardedCopy(out->data(), in->data(), 100, *out).ok());
  EXPECT_EQ(client[2 * kPage], 42);
  munmap(client, 4 * kPage);
}

// Triton PR#8170, PR#6914: offset and size that overflow together, or lie past the end.
TEST(Region, RangesOutsideAreRefused) {
  const auto region = MapUnchecked(NewMemfd(kPage).get(), kPage);
  const std::pair<int64_t, int64_t> outside[] = {{0, kPage + 1},  {1, kPage},
                                                 {kPage, 1},      {kPage + 1, 0},
                                                 {-1, 1},         {0, -1},
                                                 {kMax, kMax},    {kMax, 1},
                                                 {1, kMax},       {0, kMax},
                                                 {kMax, 0},       {-kMax - 1, 1},
                                                 {-kPage, kPage}, {-kMax - 1, -kMax - 1}};
  for (const auto& [offset, size] : outside) {
    EXPECT_EQ(region->Pin(offset, size, Access::kRead).status().code(),
              absl::StatusCode::kInvalidArgument)
        << offset << " " << size;
  }
  EXPECT_TRUE(region->Pin(0, kPage, Access::kWrite).ok());
  EXPECT_TRUE(region->Pin(kPage, 0, Access::kWrite).ok());
  ExpectError(region->Pin(8, kPage, Access::kRead).status(), absl::StatusCode::kInvalidArgument,
              "offset_bytes 8 and 4096 bytes");
}

TEST(Region, WhatIsWrittenOverlapsNothing) {
  const auto region = MapUnchecked(NewMemfd(kPage).get(), kPage);
  const auto first = region->Pin(100, 100, Access::kRead);
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(region->Pin(100, 100, Access::kRead).ok());
  EXPECT_TRUE(region->Pin(150, 100, Access::kRead).ok());
  for (const int64_t offset : {1, 100, 150, 199}) {
    const absl::Status status = region->Pin(offset, 100, Access::kWrite).status();
    ExpectError(status, absl::StatusCode::kInvalidArgument, "[100, 200) to read");
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("[" + std::to_string(offset) + ", " + std::to_string(offset + 100) +
                          ") to write"));
  }
  // Inside, around, and none of it.
  EXPECT_FALSE(region->Pin(120, 10, Access::kWrite).ok());
  EXPECT_FALSE(region->Pin(0, kPage, Access::kWrite).ok());
  EXPECT_TRUE(region->Pin(120, 0, Access::kWrite).ok());
  EXPECT_TRUE(region->Pin(0, 100, Access::kWrite).ok());
  const auto after = region->Pin(200, 100, Access::kWrite);
  ASSERT_TRUE(after.ok());
  ExpectError(region->Pin(299, 1, Access::kRead).status(), absl::StatusCode::kInvalidArgument,
              "[200, 300) to write");
  EXPECT_FALSE(region->Pin(299, 1, Access::kWrite).ok());
}

TEST(Region, ARangeIsFreeOnceItsLeaseIsGone) {
  const auto region = MapUnchecked(NewMemfd(kPage).get(), kPage);
  {
    auto lease = region->Pin(0, kPage, Access::kWrite);
    ASSERT_TRUE(lease.ok());
    RegionLease moved = *std::move(lease);
    EXPECT_EQ(lease->data(), nullptr);  // NOLINT(bugprone-use-after-move): that is the contract
    EXPECT_FALSE(region->Pin(0, 1, Access::kRead).ok());
    moved = RegionLease();
    EXPECT_TRUE(region->Pin(0, 1, Access::kRead).ok());
  }
  EXPECT_TRUE(region->Pin(0, kPage, Access::kWrite).ok());
}

TEST(Region, LeasesAreBounded) {
  const auto region = MapUnchecked(NewMemfd(kPage).get(), kPage);
  std::vector<RegionLease> leases;
  for (int64_t i = 0; i < Region::kMaxLeases; ++i) {
    auto lease = region->Pin(0, 1, Access::kRead);
    ASSERT_TRUE(lease.ok()) << i;
    leases.push_back(*std::move(lease));
  }
  ExpectError(region->Pin(0, 1, Access::kRead).status(), absl::StatusCode::kResourceExhausted,
              "4096 ranges");
  leases.pop_back();
  EXPECT_TRUE(region->Pin(0, 1, Access::kRead).ok());
}

// Triton #3207: a region is unregistered while a call uses it.
TEST(RegionTable, ALeaseOutlivesItsRegionAndItsTable) {
  auto table = std::make_unique<RegionTable>(RegionLimits());
  const auto handle = table->Add(kUser, NewMemfd(kPage).get(), kPage);
  ASSERT_TRUE(handle.ok());
  auto lease = table->Pin(*handle, 0, kPage, Access::kWrite);
  auto second = table->Pin(*handle, kPage, 0, Access::kRead);
  ASSERT_TRUE(lease.ok() && second.ok());
  ExpectCounts(*table, 1, kPage, 2);
  table->Remove(*handle);
  ExpectCounts(*table, 1, kPage, 2);
  ExpectError(table->Pin(*handle, 0, 0, Access::kRead).status(), absl::StatusCode::kNotFound,
              "no such region");
  std::memset(lease->data(), 1, kPage);
  *second = RegionLease();
  ExpectCounts(*table, 1, kPage, 1);
  *lease = RegionLease();
  ExpectCounts(*table, 0, 0, 0);

  const auto other = table->Add(kUser, NewMemfd(kPage).get(), kPage);
  ASSERT_TRUE(other.ok());
  *lease = *table->Pin(*other, 0, kPage, Access::kWrite);
  table.reset();
  std::memset(lease->data(), 1, kPage);
  EXPECT_TRUE(lease->status().ok());
}

TEST(Region, AClosedRegionGivesNoLease) {
  const auto region = MapUnchecked(NewMemfd(kPage).get(), kPage);
  region->Close();
  ExpectError(region->Pin(0, 1, Access::kRead).status(), absl::StatusCode::kNotFound, "ended");
}

TEST(RegionTable, LimitsHoldForEachOwnerAndForAll) {
  RegionTable table({.max_owner_bytes = 4 * kPage, .max_total_bytes = 6 * kPage, .max_regions = 3});
  const auto add = [&table](uid_t owner, int64_t pages) {
    return table.Add(owner, NewMemfd(pages * kPage).get(), pages * kPage);
  };
  const auto first = add(kUser, 3);
  ASSERT_TRUE(first.ok());
  ExpectError(add(kUser, 2).status(), absl::StatusCode::kResourceExhausted,
              "user 1000 holds 12288 of max_region_bytes 16384");
  ASSERT_TRUE(add(kOther, 2).ok());
  ExpectError(add(kOther, 2).status(), absl::StatusCode::kResourceExhausted,
              "all users hold 20480 of 24576");
  ASSERT_TRUE(add(kUser, 1).ok());
  ExpectError(add(kOther, 1).status(), absl::StatusCode::kResourceExhausted, "3 regions");
  ExpectCounts(table, 3, 6 * kPage, 0);
  table.Remove(*first);
  EXPECT_TRUE(add(kUser, 3).ok());
}

TEST(RegionTable, AFileIsARegionOnce) {
  RegionTable table({});
  const regions::UniqueFd fd = NewMemfd(kPage);
  const auto handle = table.Add(kUser, fd.get(), kPage);
  ASSERT_TRUE(handle.ok());
  ExpectError(table.Add(kOther, fd.get(), kPage).status(), absl::StatusCode::kAlreadyExists,
              "already");
  auto lease = table.Pin(*handle, 0, 1, Access::kRead);
  table.Remove(*handle);
  EXPECT_FALSE(table.Add(kUser, fd.get(), kPage).ok());
  *lease = RegionLease();
  EXPECT_TRUE(table.Add(kUser, fd.get(), kPage).ok());
}

TEST(RegionTable, ARefusedFileCostsNothing) {
  const auto locker = std::make_shared<FakeLocker>();
  RegionTable table({}, locker);
  const int64_t fds = OpenFds();
  EXPECT_FALSE(table.Add(kUser, NewMemfd(kPage, 0).get(), kPage).ok());
  locker->answer = absl::ResourceExhaustedError("no pages to lock");
  ExpectError(table.Add(kUser, NewMemfd(kPage).get(), kPage).status(),
              absl::StatusCode::kResourceExhausted, "no pages to lock");
  ExpectCounts(table, 0, 0, 0);
  EXPECT_EQ(OpenFds(), fds);
}

TEST(RegionTable, PagesAreLockedWhileTheyAreMapped) {
  const auto locker = std::make_shared<FakeLocker>();
  RegionTable table({}, locker);
  const auto handle = table.Add(kUser, NewMemfd(2 * kPage).get(), 2 * kPage);
  ASSERT_TRUE(handle.ok());
  EXPECT_EQ(locker->locked.size(), 1u);
  EXPECT_EQ(locker->locked_bytes, 2 * kPage);
  auto lease = table.Pin(*handle, 0, kPage, Access::kRead);
  table.Remove(*handle);
  EXPECT_EQ(locker->locked.size(), 1u);
  *lease = RegionLease();
  EXPECT_TRUE(locker->locked.empty());
}

TEST(RegionTable, HandlesDiffer) {
  RegionTable table({});
  std::set<RegionHandle> handles;
  for (int i = 0; i < 100; ++i) {
    const auto handle = table.Add(kUser, NewMemfd(kPage).get(), kPage);
    ASSERT_TRUE(handle.ok());
    EXPECT_TRUE(handles.insert(*handle).second);
    // Each byte is drawn: a constant one would be alike in all of them.
  }
  for (size_t byte = 0; byte < RegionHandle().size(); ++byte) {
    std::set<unsigned char> values;
    for (const RegionHandle& handle : handles) values.insert(handle[byte]);
    EXPECT_GT(values.size(), 10u) << byte;
  }
  RegionHandle wrong = *handles.begin();
  wrong[15] ^= 1;
  EXPECT_EQ(table.Pin(wrong, 0, 0, Access::kRead).status().code(), absl::StatusCode::kNotFound);
  table.Remove(wrong);
  EXPECT_EQ(table.counts().regions, 100);
}

TEST(RegionTable, PinsRaceWithRemoval) {
  RegionTable table({});
  for (int round = 0; round < 50; ++round) {
    const auto handle = table.Add(kUser, NewMemfd(4 * kPage).get(), 4 * kPage);
    ASSERT_TRUE(handle.ok());
    std::vector<std::thread> callers;
    for (int64_t caller = 0; caller < 4; ++caller) {
      callers.emplace_back([&table, &handle, caller] {
        for (int i = 0; i < 50; ++i) {
          auto lease = table.Pin(*handle, caller * kPage, kPage, Access::kWrite);
          if (!lease.ok()) {
            EXPECT_EQ(lease.status().code(), absl::StatusCode::kNotFound);
            return;
          }
          std::memset(lease->data(), i, kPage);
        }
      });
    }
    table.Remove(*handle);
    for (std::thread& caller : callers) caller.join();
    ExpectCounts(table, 0, 0, 0);
  }
}

}  // namespace
}  // namespace attnd::server
