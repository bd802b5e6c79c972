// What a CUDA launch's list says of its problems: kernels/cuda/launch_list.h.
#include "kernels/cuda/launch_list.h"

#include <gtest/gtest.h>

namespace attnd::kernels::cuda {
namespace {

constexpr int kQTile = 128;

// 16384 tokens of causal self-attention, heads x head_dim = 2048, bf16.
ProblemDesc DescOfLength(int64_t len, int64_t head_dim, int64_t kv_heads_of = 1) {
  AttentionTask task = {};
  AttentionProblem& p = task.problem;
  p.dtype = DType::kBF16;
  p.batch = 16384 / len;
  p.q_heads = 2048 / head_dim;
  p.kv_heads = p.q_heads / kv_heads_of;
  p.q_len = p.kv_len = len;
  p.head_dim = head_dim;
  p.mask.causal.alignment = Causal::kBottomRight;
  return Describe(task, kQTile);
}

struct Sections {
  int heads;
  int small;
};
bool operator==(const Sections& a, const Sections& b) {
  return a.heads == b.heads && a.small == b.small;
}
Sections SectionsOf(const ProblemDesc& d) { return {d.section_heads, d.small_sections}; }

TEST(LaunchList, SectionsTakeSixteenMegabytesOfKAndV) {
  // Four tiles a head differ little: the last section, of 64 heads too, is like the others.
  EXPECT_EQ(SectionsOf(DescOfLength(512, 128)), (Sections{64, 7}));
}

TEST(LaunchList, TheLastSectionHasItemsForEveryMultiprocessorWithinItsBytes) {
  // 800 items are 50 heads, of which 48 MB hold 48: (128 - 48) / 16 before them.
  EXPECT_EQ(SectionsOf(DescOfLength(2048, 128)), (Sections{16, 5}));
  // 100 heads of 256, and 48 MB hold 96: (256 - 96) / 32.
  EXPECT_EQ(SectionsOf(DescOfLength(1024, 128)), (Sections{32, 5}));
}

TEST(LaunchList, AFewLongHeadsAreOneSection) {
  EXPECT_EQ(SectionsOf(DescOfLength(16384, 128)), (Sections{16, 0}));
  EXPECT_EQ(SectionsOf(DescOfLength(8192, 128)), (Sections{32, 0}));
}

TEST(LaunchList, QueryHeadsOfOneKvHeadCountOnce) {
  EXPECT_EQ(DescOfLength(512, 128, 8).section_heads, 512);
  EXPECT_EQ(DescOfLength(2048, 128, 8).section_heads, 128);
}

TEST(LaunchList, ItemsAreNumberedIn32Bits) {
  AttentionProblem p;
  p.batch = int64_t{1} << 20;
  p.q_heads = p.kv_heads = int64_t{1} << 10;
  p.q_len = p.kv_len = 64;
  p.head_dim = 64;
  EXPECT_TRUE(CheckLengths(p).ok());
  p.q_len = 129;  // three tiles of 64 rows
  const absl::Status status = CheckLengths(p);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  for (const char* part : {"batch 1048576", "q_heads 1024", "q_len 129"}) {
    EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << status;
  }
}

}  // namespace
}  // namespace attnd::kernels::cuda
