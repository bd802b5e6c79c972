// The numbers of the generic kernels (sm_80 and later), with their reasons.
#ifndef ATTND_KERNELS_CUDA_GENERIC_CONFIG_H_
#define ATTND_KERNELS_CUDA_GENERIC_CONFIG_H_

namespace attnd::kernels::cuda::generic {

// Bytes of shared memory that a block may use on the smallest sm_80-class chip with full rate
// (A100: 163 KB of 164).
inline constexpr int kMaxSharedBytes = 163 * 1024;
// A thread may hold 255 registers; a multiprocessor has 65,536.
inline constexpr int kMaxRegisters = 255;

template <int kElementBytes, int kHeadDim>
struct Config {
  // 16-row matrix tiles of a warp. Two: each K and V fragment that a warp reads from shared memory
  // serves 32 rows, which halves that traffic; O then takes 2 * head_dim / 2 registers a thread,
  // which fits up to head_dim 128.
  static constexpr int kRowTiles = kHeadDim <= 128 ? 2 : 1;
  static constexpr bool kHalf = kElementBytes == 2;
  // Four warps, two blocks a multiprocessor: one block's softmax runs beside the other's products.
  // Halves of the wide head_dims take eight warps in one block, so that 128 rows still share a K/V
  // tile.
  static constexpr int kWarps = (kHalf && kHeadDim > 128) ? 8 : 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kQTile = 16 * kRowTiles * kWarps;
  // S takes kRowTiles * kKvTile / 2 registers a thread; with O at 128 there is room for 64 of them.
  // fp32 keeps P in two parts, so half of that.
  static constexpr int kKvTile = kHalf ? (kHeadDim <= 64 ? 128 : 64) : 32;

  // Rows start at multiples of 128 bytes (tile.cuh).
  static constexpr int kPitchBytes = (kHeadDim * kElementBytes + 127) / 128 * 128;
  static constexpr int kQBytes = kQTile * kPitchBytes;
  static constexpr int kKBytes = kKvTile * kPitchBytes;
  // fp32 V rows are padded by 16 bytes: its fragments are read word by word, two rows apart, and 2
  // * (D + 4) = 8 modulo 32 banks makes that free of conflicts.
  static constexpr int kVRowBytes = kHalf ? kPitchBytes : kHeadDim * kElementBytes + 16;
  static constexpr int kVBytes = kKvTile * kVRowBytes;
  static constexpr int kSharedBytes = kQBytes + kKBytes + kVBytes;

  static constexpr int kOutputRegisters = kRowTiles * kHeadDim / 2;
  static constexpr int kScoreRegisters = kRowTiles * kKvTile / 2;
  static constexpr int kBlocksPerMultiprocessor = (2 * kThreads * kMaxRegisters <= 65536) ? 2 : 1;

  static_assert(kSharedBytes <= kMaxSharedBytes);
  static_assert(kOutputRegisters + kScoreRegisters <= 192, "leaves 63 registers for the rest");
};

}  // namespace attnd::kernels::cuda::generic

#endif  // ATTND_KERNELS_CUDA_GENERIC_CONFIG_H_
