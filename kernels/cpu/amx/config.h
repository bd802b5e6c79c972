// Sizes of the AMX kernel, and why.
//
// A tile register holds 16 rows of 64 bytes; a product of two takes 16 cycles and is 16 x 16 x 32
// multiply-adds, 1024 operations a cycle. Loading a tile from the L1 takes 8 cycles, so 2 x 1
// blocks of sums (3 loads for 2 products) keep the unit busy; storing one takes 18.
#ifndef ATTND_KERNELS_CPU_AMX_CONFIG_H_
#define ATTND_KERNELS_CPU_AMX_CONFIG_H_

#include <cstdint>

namespace attnd::kernels::cpu::amx {

inline constexpr int64_t kTileRows = 16;    // rows of a tile register
inline constexpr int64_t kTileElems = 512;  // bf16 in one: 16 x 32
inline constexpr int64_t kDepth = 32;  // multiply-adds of one product, head_dim is padded to it

// Query rows and keys of one step.
inline constexpr int64_t kBlockRows = 32;
inline constexpr int64_t kStepKeys = 128;
inline constexpr int64_t kKeyGroups = kStepKeys / 32;

// P.V waits for so many keys, unless a row's maximum grows, as O is loaded and stored once for all
// of them.
inline constexpr int64_t kBatchKeys = 256;
inline constexpr int64_t kBatchGroups = kBatchKeys / 32;

// Key positions are cut into steps from position 0 on, for every query: what a row computes does
// not depend on the rows that it shares a block or a task with.

// Whether more scratch memory buys more than a few percent: 2.5 MB a thread.
constexpr bool HasLongTasks(int64_t padded_dim, int64_t parts) {
  return parts == 1 && padded_dim > 64 && padded_dim <= 128;
}

// Packed keys of a task at a time, in the L2 together with Q and O of all its rows: 256 KiB of K
// and V, unless that were less than a batch. In long tasks 512 KiB, which every block of rows
// reads, so that they stay in the L2, while Q and O pass through it once for so many keys.
constexpr int64_t ChunkKeys(int64_t padded_dim, int64_t parts) {
  if (HasLongTasks(padded_dim, parts)) return 1024;
  const int64_t keys = 256 * 1024 / (padded_dim * parts * 4);
  return keys < 512 ? kBatchKeys : 512;
}

// Query rows of a task at most. Packing a key costs as much as multiplying it by 90 to 150 rows.
constexpr int64_t TaskRows(int64_t padded_dim, int64_t parts) {
  if (padded_dim * parts > 256) return 256;
  return HasLongTasks(padded_dim, parts) ? 2048 : 512;
}

inline constexpr int64_t kL1Bytes = 48 * 1024;        // Sapphire Rapids and later
inline constexpr int64_t kL2Bytes = 2 * 1024 * 1024;  // likewise

// A step at head_dim 128.
static_assert(kBlockRows * 128 * (2 + 4) + kBlockRows * kStepKeys * (4 + 2) <= kL1Bytes);
// A task: packed K and V, for bf16 and for fp16 in two parts; Q and O too, but in long tasks.
static_assert(ChunkKeys(128, 1) * 128 * 4 <= kL2Bytes / 4);
static_assert(ChunkKeys(64, 1) * 64 * 4 + TaskRows(64, 1) * 64 * 6 <= kL2Bytes);
static_assert(ChunkKeys(256, 1) * 256 * 4 + TaskRows(256, 1) * 256 * 6 <= kL2Bytes);
static_assert(ChunkKeys(256, 2) * 256 * 8 + TaskRows(256, 2) * 256 * 8 <= kL2Bytes);

}  // namespace attnd::kernels::cpu::amx

#endif  // ATTND_KERNELS_CPU_AMX_CONFIG_H_
