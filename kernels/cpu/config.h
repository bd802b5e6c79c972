// Tile sizes of the CPU kernel, and why.
//
// Vectors run along query rows: a register holds one value of W rows (W = 16, 8, 4 floats), Q and O
// are kept transposed, and elements of K and V are broadcast. So K and V need no transposing, the
// softmax has no horizontal steps, and each row is a lane that never meets another.
#ifndef ATTND_KERNELS_CPU_CONFIG_H_
#define ATTND_KERNELS_CPU_CONFIG_H_

#include <cstdint>

namespace attnd::kernels::cpu {

inline constexpr int64_t kMinL1Bytes = 32 * 1024;   // per core: Haswell, Zen, Neoverse N1 and later
inline constexpr int64_t kMinL2Bytes = 512 * 1024;  // Zen; Skylake-SP has 1 MiB, Neoverse N1 1 MiB

// Keys of a K/V tile. P.V of a tile is summed on its own before it is added to O, so 64 is also the
// length of the longest fp32 sum over keys.
inline constexpr int64_t kKvTile = 64;

// Up to so many keys that all rows see, rows are not turned: see few_keys.h. With six it is as fast
// either way.
inline constexpr int64_t kFewKeys = 4;

// The micro-kernel multiplies kRowVectors vectors of rows by kColumns broadcast elements and holds
// kRowVectors * kColumns sums in registers: at least 8 of them, as two FMA units of latency 4 need.
// A tile's blocks are as equal as vectors allow, the last one takes as many as hold its rows.
//   AVX-512: 3 x 8 = 24 sums + 3 operands + 1 broadcast of 32 registers; 11 loads for 24 FMAs, or
//            for 24 VDPBF16PS, of which Zen 4 begins one a cycle and Sapphire Rapids one in two,
//            with latencies of 6 and 8. 2 x 8 sums are 6 % slower.
//   AVX2:    3 x 4 = 12 sums + 3 operands + 1 broadcast of 16 registers;  7 loads for 12 FMAs.
//   128 bit: 2 x 4 =  8 sums + 2 operands + 1 broadcast + 1 product (SSE2 has no FMA) of 16.
// kQTile, the query rows of a task, is a whole number of such blocks near 128. K/V rows that do not
// lie as fp32 are converted once a task: next to 2 * 128 multiply-adds per converted element that
// costs a few percent. More rows would leave short problems with fewer tasks than threads.
template <int kVectorBytes>
struct MicroTile;
template <>
struct MicroTile<64> {
  static constexpr int kRowVectors = 3;
  static constexpr int kColumns = 8;
  static constexpr int64_t kQTile = 144;
};
template <>
struct MicroTile<32> {
  static constexpr int kRowVectors = 3;
  static constexpr int kColumns = 4;
  static constexpr int64_t kQTile = 120;
};
template <>
struct MicroTile<16> {
  static constexpr int kRowVectors = 2;
  static constexpr int kColumns = 4;
  static constexpr int64_t kQTile = 128;
};

// Rows of K and V in scratch are padded to whole cache lines plus one: a row stride of a power of
// two would put the 64 rows of a tile into few sets of the L1.
inline constexpr int64_t kCacheLineElems = 16;
constexpr int64_t KvRowElems(int64_t head_dim) {
  return (head_dim + kCacheLineElems - 1) / kCacheLineElems * kCacheLineElems + kCacheLineElems;
}

inline constexpr int64_t kNumberBytes = 4;  // of scratch

// fp32 rows of K and V that are no farther from each other than those of head_dim 256 are
// multiplied as they lie: 1.05 to 1.15 times as fast as copies (1024 keys, AVX-512, Xeon of family
// 6, model 167). From 2 KiB on, where the 64 rows lie in few sets of the L1 and on as many pages as
// there are rows, copies are faster by as much.
inline constexpr int64_t kMaxInPlaceStrideBytes = 1024;

// At head_dim 128 a row block's Q (24 KiB at most, 48 rows) stays in the L1 while K passes through
// it, and its scores (12 KiB) while V does.
static_assert(128 * 48 * 4 <= kMinL1Bytes && kKvTile * 48 * 4 <= kMinL1Bytes / 2);
// In pairs of bf16, 64 numbers a row, all of K is there beside Q; so are V, 32 rows, and weights.
static_assert((kKvTile * KvRowElems(64) + 64 * 48) * 4 <= kMinL1Bytes);
static_assert((kKvTile / 2 * KvRowElems(128) + kKvTile / 2 * 48) * 4 <= kMinL1Bytes);
// At head_dim 256 a task's K and V tiles, Q and O together stay in the L2.
static_assert((2 * kKvTile * KvRowElems(256) + 2 * 144 * 256) * 4 <= kMinL2Bytes);

}  // namespace attnd::kernels::cpu

#endif  // ATTND_KERNELS_CPU_CONFIG_H_
