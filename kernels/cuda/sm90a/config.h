// The numbers of the Hopper kernels, with their reasons.
#ifndef ATTND_KERNELS_CUDA_SM90A_CONFIG_H_
#define ATTND_KERNELS_CUDA_SM90A_CONFIG_H_

namespace attnd::kernels::cuda::sm90a {

// What a block may use on sm_90, of its multiprocessor's 228 KB.
inline constexpr int kMaxSharedBytes = 227 * 1024;

// One way to cut a problem into tiles.
//   kConsumers    warpgroups that compute, 64 query rows each
//   kKvTile       keys of a tile, a multiple of 16
//   kStages       K tiles, and V tiles, that shared memory holds: 1 or 2
//   kQStages      query tiles that it holds: with 2 the next item's first product runs beside this
//   one's last
template <int kHeadDimT, int kConsumersT, int kKvTileT, int kStagesT, int kQStagesT>
struct TileConfig {
  static constexpr int kHeadDim = kHeadDimT;
  static constexpr int kConsumers = kConsumersT;
  static constexpr int kKvTile = kKvTileT;
  static constexpr int kStages = kStagesT;
  static constexpr int kQStages = kQStagesT;

  static constexpr int kQTile = 64 * kConsumers;
  static constexpr int kThreads = 128 * (kConsumers + 1);
  // Rows lie in chunks of 64 elements, 128 bytes: what the swizzle and the matrix unit take.
  static constexpr int kChunks = (kHeadDim + 63) / 64;
  static constexpr int kQChunkBytes = kQTile * 128;
  static constexpr int kKvChunkBytes = kKvTile * 128;
  static constexpr int kQBytes = kChunks * kQChunkBytes;
  static constexpr int kKvBytes = kChunks * kKvChunkBytes;
  static constexpr int kTileBytes = kQStages * kQBytes + 2 * kStages * kKvBytes;

  // What the block starts with, dealt anew: 168 a thread for three warpgroups, 128 for four, which
  // is 40 + 2 * 232 = 504 and 32 + 3 * 160 = 512 over one thread of each.
  static constexpr int kProducerRegisters = kConsumers == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 232 : 160;
  static_assert(kKvTile % 16 == 0 && (kConsumers == 2 || kConsumers == 3) && kStages <= 2);
  // A warpgroup may let up to two K tiles pass while it holds two V tiles (consumer.cuh): with
  // more, the producer's order would stop it.
  static_assert(64 * (kConsumers - 1) <= 2 * kKvTile);
};

// What is built: one kernel a line and 16-bit dtype (CMakeLists.txt reads these lines). A problem
// takes the line of its head_dim class and family with the largest FROM_KV_LEN that its kv_len
// reaches. Chosen on an H200 (README.md).
//
#define ATTND_CONFIG(...)
//           HEAD_DIM, FAMILY, FROM_KV_LEN, kConsumers, kKvTile, kStages, kQStages
ATTND_CONFIG(64, kFull, 0, 3, 128, 2, 2)
ATTND_CONFIG(64, kCausal, 0, 3, 128, 2, 2)
ATTND_CONFIG(64, kGeneral, 0, 2, 128, 2, 2)
ATTND_CONFIG(96, kFull, 0, 2, 128, 2, 2)
ATTND_CONFIG(96, kCausal, 0, 2, 128, 2, 2)
ATTND_CONFIG(96, kGeneral, 0, 2, 96, 2, 2)
ATTND_CONFIG(128, kFull, 0, 2, 128, 2, 2)
ATTND_CONFIG(128, kFull, 2048, 2, 160, 2, 2)
ATTND_CONFIG(128, kCausal, 0, 2, 128, 2, 2)
ATTND_CONFIG(128, kCausal, 8192, 2, 160, 2, 2)
ATTND_CONFIG(128, kGeneral, 0, 2, 96, 2, 2)
ATTND_CONFIG(192, kFull, 0, 2, 112, 2, 1)
ATTND_CONFIG(192, kCausal, 0, 2, 96, 2, 1)
ATTND_CONFIG(192, kGeneral, 0, 2, 80, 2, 1)
ATTND_CONFIG(256, kFull, 0, 2, 80, 2, 1)
ATTND_CONFIG(256, kCausal, 0, 2, 64, 2, 1)
ATTND_CONFIG(256, kCausal, 2048, 2, 80, 2, 1)
ATTND_CONFIG(256, kGeneral, 0, 2, 64, 2, 1)
#undef ATTND_CONFIG

}  // namespace attnd::kernels::cuda::sm90a

#endif  // ATTND_KERNELS_CUDA_SM90A_CONFIG_H_
