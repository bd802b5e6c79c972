// The numbers of the generic kernels (sm_80 and later), with their reasons.
#ifndef ATTND_KERNELS_CUDA_GENERIC_CONFIG_H_
#define ATTND_KERNELS_CUDA_GENERIC_CONFIG_H_

namespace attnd::kernels::cuda::generic {

// Bytes of shared memory that a block may use on the smallest sm_80-class chip with full rate
// (A100: 163 KB of 164).
inline constexpr int kMaxSharedBytes = 163 * 1024;
// A thread may hold 255 registers; a multiprocessor has 65,536.
inline constexpr int kMaxRegisters = 255;

// Halves.
template <int kElementBytes, int kHeadDim, bool kGeneral>
struct Config {
  static constexpr bool kSplit = false;
  // 16-row matrix tiles of a warp. Two: each K and V fragment that a warp reads from shared memory
  // serves 32 rows, which halves that traffic; O then takes 2 * head_dim / 2 registers a thread,
  // which fits up to head_dim 128.
  static constexpr int kRowTiles = kHeadDim <= 128 ? 2 : 1;
  // Four warps, two blocks a multiprocessor: one block's softmax runs beside the other's products.
  // The wide head_dims take eight warps in one block, so that 128 rows still share a K/V tile.
  static constexpr int kWarps = kHeadDim > 128 ? 8 : 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kQTile = 16 * kRowTiles * kWarps;
  // S takes kRowTiles * kKvTile / 2 registers a thread; with O at 128 there is room for 64 of them,
  // and for half as many where a score is worked on at length.
  static constexpr int kKvTile = (kHeadDim <= 64 ? 128 : 64) / (kGeneral ? 2 : 1);

  // Rows start at multiples of 128 bytes (tile.cuh).
  static constexpr int kPitchBytes = (kHeadDim * kElementBytes + 127) / 128 * 128;
  static constexpr int kQBytes = kQTile * kPitchBytes;
  static constexpr int kKBytes = kKvTile * kPitchBytes;
  static constexpr int kVBytes = kKvTile * kPitchBytes;
  static constexpr int kSharedBytes = kQBytes + kKBytes + kVBytes;

  static constexpr int kOutputRegisters = kRowTiles * kHeadDim / 2;
  static constexpr int kScoreRegisters = kRowTiles * kKvTile / 2;
  static constexpr int kBlocksPerMultiprocessor = (2 * kThreads * kMaxRegisters <= 65536) ? 2 : 1;

  static_assert(kSharedBytes <= kMaxSharedBytes);
  static_assert(kOutputRegisters + kScoreRegisters <= 192, "leaves 63 registers for the rest");
};

// fp32, split into two planes of fp16 (split.cuh).
template <int kHeadDim, bool kGeneral>
struct Config<4, kHeadDim, kGeneral> {
  static constexpr bool kSplit = true;
  static constexpr int kRowTiles = kHeadDim <= 128 ? 2 : 1;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kQTile = 16 * kRowTiles * kWarps;
  // S takes two sums a score. Few keys, so that two blocks and more find room on one multiprocessor
  // of Hopper (228 KB): one splits while the other multiplies.
  static constexpr int kKvTile = kHeadDim <= 128 ? 32 : 16;

  // A row of one plane.
  static constexpr int kPitchBytes = (kHeadDim * 2 + 127) / 128 * 128;
  static constexpr int kQBytes = 2 * kQTile * kPitchBytes;
  static constexpr int kKBytes = 2 * kKvTile * kPitchBytes;
  static constexpr int kVBytes = 2 * kKvTile * kPitchBytes;
  // Where K and V arrive in turn, still fp32.
  static constexpr int kStageBytes = kKvTile * kHeadDim * 4;
  // One factor a row of Q, K and V.
  static constexpr int kFactorBytes = (kQTile + 2 * kKvTile) * 4;
  static constexpr int kSharedBytes = kQBytes + kKBytes + kVBytes + kStageBytes + kFactorBytes;

  static constexpr int kOutputRegisters = kRowTiles * kHeadDim / 2;
  static constexpr int kScoreRegisters = 2 * kRowTiles * kKvTile / 2;
  static constexpr int kBlocksPerMultiprocessor = kHeadDim <= 64 ? 3 : 2;

  static_assert(kQTile * kHeadDim * 4 <= kQBytes, "O, fp32, takes Q's place");
  static_assert(kSharedBytes <= kMaxSharedBytes);
  static_assert(kOutputRegisters + kScoreRegisters <= 192, "leaves 63 registers for the rest");
};

}  // namespace attnd::kernels::cuda::generic

#endif  // ATTND_KERNELS_CUDA_GENERIC_CONFIG_H_
