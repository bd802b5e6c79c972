#include "server/memory/slab_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "server/memory/buffer_pool.h"

namespace attnd::server {
namespace {

// Aligned to 256, counted, refusing on order.
class CountedSource final : public BlockAllocator {
 public:
  unsigned char* New(int64_t bytes) override {
    if (refuse) return nullptr;
    auto* const block = static_cast<unsigned char*>(std::aligned_alloc(256, bytes));
    out[block] = bytes;
    return block;
  }
  void Free(unsigned char* block, int64_t bytes) override {
    ASSERT_EQ(out.at(block), bytes);
    out.erase(block);
    std::free(block);
  }
  bool refuse = false;
  std::map<unsigned char*, int64_t> out;
};

class SlabAllocatorTest : public ::testing::Test {
 protected:
  std::shared_ptr<CountedSource> source_ = std::make_shared<CountedSource>();
  SlabAllocator slabs_{{.budget_bytes = 16384, .slab_bytes = 4096, .alignment_bytes = 256},
                       source_};
};

TEST_F(SlabAllocatorTest, CutsBlocksFromSlabsAndKeepsThem) {
  unsigned char* const a = slabs_.New(1000);
  unsigned char* const b = slabs_.New(64);
  EXPECT_EQ(b - a, 1024) << "rounded to the alignment";
  EXPECT_EQ(slabs_.used_bytes(), 1024 + 256);
  EXPECT_EQ(slabs_.held_bytes(), 4096);
  slabs_.Free(a, 1000);
  slabs_.Free(b, 64);
  EXPECT_EQ(slabs_.used_bytes(), 0);
  EXPECT_EQ(source_->out.size(), 1u) << "slabs are expensive";
  EXPECT_EQ(slabs_.New(4096), a) << "whole again";
  slabs_.Free(a, 4096);
}

TEST_F(SlabAllocatorTest, ALargeBlockGetsASlabOfItsOwn) {
  unsigned char* const large = slabs_.New(10000);
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(slabs_.held_bytes(), 10240);
  EXPECT_EQ(slabs_.New(16385), nullptr) << "never fits";
  EXPECT_EQ(slabs_.New(8192), nullptr) << "not now";
  slabs_.Free(large, 10000);
}

TEST_F(SlabAllocatorTest, EmptySlabsMakeRoomForWhatFitsNowhere) {
  std::vector<unsigned char*> small;
  for (int i = 0; i < 4; ++i) small.push_back(slabs_.New(4096));
  EXPECT_EQ(slabs_.held_bytes(), 16384);
  for (unsigned char* block : small) slabs_.Free(block, 4096);
  unsigned char* const all = slabs_.New(16384);
  EXPECT_NE(all, nullptr);
  EXPECT_EQ(slabs_.held_bytes(), 16384);
  slabs_.Free(all, 16384);
}

TEST_F(SlabAllocatorTest, EmptySlabsGoBackToTheSourceForOthers) {
  unsigned char* const kept = slabs_.New(64);
  slabs_.Free(slabs_.New(4096), 4096);
  EXPECT_EQ(slabs_.held_bytes(), 8192);
  EXPECT_TRUE(slabs_.FreeEmptySlabs());
  EXPECT_EQ(slabs_.held_bytes(), 4096) << "the one in use stays";
  EXPECT_FALSE(slabs_.FreeEmptySlabs());
  slabs_.Free(kept, 64);
}

TEST_F(SlabAllocatorTest, ASourceThatRefusesIsAskedAgainLater) {
  source_->refuse = true;
  EXPECT_EQ(slabs_.New(64), nullptr);
  source_->refuse = false;
  unsigned char* const block = slabs_.New(64);
  EXPECT_NE(block, nullptr);
  slabs_.Free(block, 64);
}

TEST_F(SlabAllocatorTest, BlocksNeverOverlapAndNothingIsLost) {
  std::mt19937_64 random(1);
  std::map<unsigned char*, int64_t> blocks;
  for (int i = 0; i < 20000; ++i) {
    if (blocks.empty() || random() % 2) {
      const int64_t bytes = 64 * static_cast<int64_t>(1 + random() % 80);
      unsigned char* const block = slabs_.New(bytes);
      if (block == nullptr) continue;
      const auto next = blocks.upper_bound(block);
      ASSERT_TRUE(next == blocks.end() || block + bytes <= next->first);
      ASSERT_TRUE(next == blocks.begin() ||
                  std::prev(next)->first + std::prev(next)->second <= block);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(block) % 256, 0u);
      blocks[block] = bytes;
    } else {
      const auto gone = std::next(blocks.begin(), static_cast<long>(random() % blocks.size()));
      slabs_.Free(gone->first, gone->second);
      blocks.erase(gone);
    }
    ASSERT_LE(slabs_.held_bytes(), slabs_.budget_bytes());
  }
  for (const auto& [block, bytes] : blocks) slabs_.Free(block, bytes);
  EXPECT_EQ(slabs_.used_bytes(), 0);
  EXPECT_NE(slabs_.New(16384), nullptr);
}

// A pool over slabs, both of one budget: what the pool keeps does not keep a larger block out.
TEST(BufferPoolOverSlabs, KeptBlocksMakeRoom) {
  auto source = std::make_shared<CountedSource>();
  {
    BufferPool pool(16384, std::make_shared<SlabAllocator>(
                               SlabOptions{.budget_bytes = 16384, .slab_bytes = 4096}, source));
    {
      std::vector<Buffer> small;
      for (int i = 0; i < 16; ++i) small.push_back(*pool.Allocate(1024));
      EXPECT_FALSE(pool.Allocate(1).ok());
    }
    const absl::StatusOr<Buffer> all = pool.Allocate(16384);
    ASSERT_TRUE(all.ok()) << all.status();
    std::fill_n(all->data(), 16384, static_cast<unsigned char>(1));
  }
  EXPECT_TRUE(source->out.empty());
}

}  // namespace
}  // namespace attnd::server
