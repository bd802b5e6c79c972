#include "server/memory/buffer_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/memory/block.h"
#include "tests/fakes/fake_clock.h"

// AddressSanitizer holds freed memory back, 256 MB of it by default, to catch its use; the tests of
// resident memory need it to go.
extern "C" const char* __asan_default_options() {  // NOLINT: the name is the sanitizer's
  return "quarantine_size_mb=1:thread_local_quarantine_size_kb=64";
}

namespace attnd::server {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

// Resident bytes of this process.
int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0;
  int64_t resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

Buffer MustAllocate(BufferPool& pool, int64_t size_bytes) {
  absl::StatusOr<Buffer> buffer = pool.Allocate(size_bytes);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  return buffer.ok() ? *std::move(buffer) : Buffer();
}

TEST(SizeClass, HoldsTheSizeAndWastesAnEighthAtMost) {
  int64_t previous = 0;
  for (int64_t size = 1; size < 4 * kMiB; size += size < 5000 ? 1 : 997) {
    const int64_t block = SizeClassBytes(size);
    ASSERT_GE(block, size);
    ASSERT_GE(block, previous) << size;
    ASSERT_EQ(block % kBlockAlignment, 0) << size;
    ASSERT_LE(block - size, std::max<int64_t>(size / 8, kBlockAlignment - 1)) << size;
    ASSERT_EQ(SizeClassBytes(block), block) << size;
    previous = block;
  }
  EXPECT_EQ(SizeClassBytes(int64_t{1} << 40), int64_t{1} << 40);
}

TEST(BufferPool, BuffersAreAlignedWritableAndCounted) {
  BufferPool pool(64 * kMiB);
  std::vector<Buffer> held;
  int64_t expected_used = 0;
  for (const int64_t size : {int64_t{1}, int64_t{64}, int64_t{65}, int64_t{4097}, kMiB, 3 * kMiB}) {
    held.push_back(MustAllocate(pool, size));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(held.back().data()) % 64, 0u) << size;
    EXPECT_EQ(held.back().size_bytes(), size);
    std::memset(held.back().data(), 0x5a, static_cast<size_t>(size));
    EXPECT_EQ(pool.HeldBytes(held.back()), pool.BlockBytes(size));
    expected_used += pool.BlockBytes(size);
    EXPECT_EQ(pool.used_bytes(), expected_used);
  }
  held.clear();
  EXPECT_EQ(pool.used_bytes(), 0);
  EXPECT_EQ(pool.kept_bytes(), expected_used);
}

TEST(BufferPool, AnEmptyBufferCostsNothing) {
  BufferPool pool(64);
  const Buffer empty = MustAllocate(pool, 0);
  EXPECT_EQ(empty.size_bytes(), 0);
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_EQ(pool.used_bytes(), 0);
  EXPECT_EQ(pool.BlockBytes(0), 0);
}

TEST(BufferPool, MovingLeavesNothingBehind) {
  BufferPool pool(kMiB);
  Buffer first = MustAllocate(pool, 1000);
  unsigned char* const data = first.data();
  Buffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): what is tested
  EXPECT_EQ(first.size_bytes(), 0);
  Buffer third = MustAllocate(pool, 2000);
  third = std::move(second);
  EXPECT_EQ(pool.used_bytes(), pool.BlockBytes(1000)) << "what `third` held goes at once";
  third = Buffer();
  EXPECT_EQ(pool.used_bytes(), 0);
}

TEST(BufferPool, SaysWhatCanNeverFitAndWhatMayFitLater) {
  BufferPool pool(1000);
  for (const int64_t size : {int64_t{-1}, int64_t{1001}, int64_t{1} << 62, INT64_MAX}) {
    const absl::Status never = pool.Allocate(size).status();
    EXPECT_EQ(never.code(), absl::StatusCode::kInvalidArgument) << size;
    EXPECT_THAT(std::string(never.message()), HasSubstr(std::to_string(size)));
    EXPECT_THAT(std::string(never.message()), HasSubstr("1000"));
  }
  // Rounded to the alignment it would be 1024.
  EXPECT_EQ(pool.Allocate(1000).status().code(), absl::StatusCode::kInvalidArgument);
  {
    const Buffer most = MustAllocate(pool, 900);
    const absl::Status later = pool.Allocate(100).status();
    EXPECT_EQ(later.code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_TRUE(pool.Allocate(100).ok());
}

TEST(BufferPool, TheWholeBudgetCanBeAskedForThoughItsClassIsLarger) {
  const int64_t budget_bytes = 9 * kMiB + 64;
  BufferPool pool(budget_bytes);
  const Buffer all = MustAllocate(pool, budget_bytes);
  EXPECT_EQ(pool.used_bytes(), budget_bytes);
}

TEST(BufferPool, ABlockIsUsedAgainAndKeptOnesGoBeforeTheBudgetIsPassed) {
  BufferPool pool(4 * kMiB);
  unsigned char* const first = MustAllocate(pool, kMiB).data();
  EXPECT_EQ(MustAllocate(pool, kMiB - 5).data(), first) << "same size class";
  EXPECT_EQ(pool.kept_bytes(), kMiB);
  {
    const Buffer large = MustAllocate(pool, 3 * kMiB + kMiB / 2);
    EXPECT_EQ(pool.kept_bytes(), 0);
  }
  EXPECT_EQ(pool.kept_bytes(), 3 * kMiB + kMiB / 2);
}

TEST(BufferPool, NeverPassesItsBudgetWhateverIsAskedFor) {
  constexpr int64_t kBudgetBytes = 10 * kMiB;
  BufferPool pool(kBudgetBytes);
  std::mt19937_64 random(7);
  std::vector<Buffer> held;
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    if (!held.empty() && random() % 2 == 0) {
      std::swap(held[random() % held.size()], held.back());
      held.pop_back();
    } else {
      absl::StatusOr<Buffer> buffer =
          pool.Allocate(static_cast<int64_t>(random() % (int64_t{1} << (random() % 23))));
      if (buffer.ok()) {
        held.push_back(*std::move(buffer));
      } else {
        ASSERT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
        ++refused;
      }
    }
    ASSERT_LE(pool.used_bytes() + pool.kept_bytes(), kBudgetBytes);
  }
  EXPECT_GT(refused, 0) << "the budget was never reached: the test tests nothing";
}

TEST(BufferPool, OutlivedByItsBuffers) {
  Buffer buffer;
  {
    BufferPool pool(kMiB);
    buffer = MustAllocate(pool, 100);
  }
  std::memset(buffer.data(), 1, 100);
}

TEST(BufferPool, ResidentMemoryStaysFlatOver100000SmallCalls) {
  BufferPool pool(256 * kMiB);
  const auto small_calls = [&](int calls) {
    std::mt19937_64 random(1);
    for (int i = 0; i < calls; ++i) {
      const Buffer q = MustAllocate(pool, 1 + static_cast<int64_t>(random() % 65536));
      const Buffer o = MustAllocate(pool, 1 + static_cast<int64_t>(random() % 65536));
      std::memset(q.data(), 1, static_cast<size_t>(q.size_bytes()));
      std::memset(o.data(), 1, static_cast<size_t>(o.size_bytes()));
    }
  };
  small_calls(5000);
  const int64_t before_bytes = ResidentBytes();
  small_calls(100000);
  // Room for what is not the pool's; a leak of 100 bytes a call would be 10 MB.
  EXPECT_LT(ResidentBytes() - before_bytes, 4 * kMiB);
}

TEST(BufferPool, TheMemoryOfAHugeCallIsUsedAgainOrGivenBackToTheSystem) {
  BufferPool pool(1024 * kMiB);
  const int64_t before_bytes = ResidentBytes();
  const auto huge_call = [&] {
    const Buffer huge = MustAllocate(pool, 256 * kMiB);
    std::memset(huge.data(), 1, static_cast<size_t>(huge.size_bytes()));
    return huge.data();
  };
  unsigned char* const first = huge_call();
  EXPECT_EQ(huge_call(), first);
  EXPECT_GE(ResidentBytes() - before_bytes, 200 * kMiB);
  // Under small calls alone it goes.
  for (uint64_t i = 0; i <= BufferPool::kKeptReleases; ++i) MustAllocate(pool, 1000);
  EXPECT_EQ(pool.kept_bytes(), pool.BlockBytes(1000));
  EXPECT_LT(ResidentBytes() - before_bytes, 100 * kMiB);
}

TEST(BufferPool, WaitForReleaseMissesNothingGivenBack) {
  fakes::FakeClock clock;
  BufferPool pool(1024);
  Buffer held = MustAllocate(pool, 1024);
  const uint64_t seen = pool.releases();
  ASSERT_FALSE(pool.Allocate(64).ok());
  held = Buffer();
  pool.WaitForRelease(seen, clock, kNever);  // hangs if the release before it is missed

  held = MustAllocate(pool, 1024);
  const uint64_t seen_again = pool.releases();
  std::thread other([&] { held = Buffer(); });
  while (pool.releases() == seen_again) pool.WaitForRelease(seen_again, clock, kNever);
  other.join();
  EXPECT_EQ(pool.used_bytes(), 0);
}

TEST(BufferPool, WaitForReleaseEndsAtItsDeadline) {
  fakes::FakeClock clock;
  BufferPool pool(1024);
  const TimePoint deadline = clock.Now() + std::chrono::seconds(1);
  std::thread other([&] { clock.Advance(std::chrono::seconds(1)); });
  while (clock.Now() < deadline) pool.WaitForRelease(pool.releases(), clock, deadline);
  other.join();
}

TEST(BufferPool, ThreadsNeverShareABlock) {
  BufferPool pool(8 * kMiB);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      for (int i = 0; i < 2000; ++i) {
        absl::StatusOr<Buffer> buffer = pool.Allocate(1 + static_cast<int64_t>(random() % 5000));
        if (!buffer.ok()) continue;
        const auto size = static_cast<size_t>(buffer->size_bytes());
        std::memset(buffer->data(), t, size);
        for (size_t b = 0; b < size; ++b) ASSERT_EQ(buffer->data()[b], t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.used_bytes(), 0);
}

}  // namespace
}  // namespace attnd::server
