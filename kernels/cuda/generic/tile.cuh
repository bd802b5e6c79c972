// Tiles in shared memory: how they lie, and how they are loaded and stored.
#ifndef ATTND_KERNELS_CUDA_GENERIC_TILE_CUH_
#define ATTND_KERNELS_CUDA_GENERIC_TILE_CUH_

#include <cstdint>

#include "kernels/cuda/ptx.cuh"

namespace attnd::kernels::cuda::generic {

// Rows in 16-byte chunks, exchanged within groups of 8 so that the 8 rows of one ldmatrix lie in 8
// different bank groups. A row's pitch is a multiple of 128 bytes, so the exchange is an
// exclusive-or of address bits 4 to 6 with the row.
template <int kRowBytes>
struct SwizzledLayout {
  static constexpr int kPitchBytes = (kRowBytes + 127) / 128 * 128;
  static constexpr int kChunks = kRowBytes / 16;
  __device__ static __forceinline__ int Offset(int row, int chunk) {
    return row * kPitchBytes + ((chunk ^ (row & 7)) << 4);
  }
};

// One lane's address in a tile whose rows are multiples of 8 apart and whose chunks are counted in
// pairs: an exclusive-or and constants, whatever the step.
template <class Layout>
struct LaneAddress {
  uint32_t base;
  __device__ __forceinline__ LaneAddress(uint32_t tile, int lane_row, int lane_chunk)
      : base(tile + Layout::Offset(lane_row, lane_chunk)) {}
  // `rows`, a multiple of 8, below the lane's row, and 2 * step chunks to the right.
  __device__ __forceinline__ uint32_t At(int rows, int step) const {
    return (base ^ (((2 * step) & 7) << 4)) + rows * Layout::kPitchBytes + ((2 * step) & ~7) * 16;
  }
};

// Bytes of `chunk` that lie inside a row of row_bytes.
__device__ __forceinline__ int ChunkBytes(int row_bytes, int chunk) {
  return min(16, max(0, row_bytes - 16 * chunk));
}

// Rows of a tile dealt to threads: each thread keeps one chunk column and steps down the rows, so
// that addresses are sums.
template <class Layout, int kRows, int kThreads>
struct Deal {
  static constexpr int kChunks = Layout::kChunks;
  static constexpr int FloorPowerOfTwo(int x) { return x < 2 ? 1 : 2 * FloorPowerOfTwo(x / 2); }
  static constexpr int kRowsPerPass = FloorPowerOfTwo(kThreads / kChunks);
  static constexpr int kPasses = kRows / kRowsPerPass;
  static_assert(kRows % kRowsPerPass == 0);

  int row;
  int chunk;
  __device__ __forceinline__ Deal() : row(threadIdx.x / kChunks), chunk(threadIdx.x % kChunks) {}
  __device__ __forceinline__ bool idle() const { return row >= kRowsPerPass; }
};

// Loads kRows rows, asynchronously where the memory is aligned; rows from valid_rows on and columns
// from row_bytes on become zero and are not read. The caller commits and waits, then meets the
// block at a barrier.
template <class Layout, int kRows, int kThreads>
__device__ __forceinline__ void LoadTile(unsigned char* tile, const unsigned char* base,
                                         int64_t row_stride_bytes, int valid_rows, int row_bytes,
                                         bool aligned) {
  using D = Deal<Layout, kRows, kThreads>;
  const D deal;
  if (deal.idle()) return;
  const int bytes = ChunkBytes(row_bytes, deal.chunk);
  const unsigned char* source = base + deal.row * row_stride_bytes + 16 * deal.chunk;
  const int64_t pass_bytes = D::kRowsPerPass * row_stride_bytes;
  if (aligned && bytes == 16) {
    const uint32_t shared = ptx::SharedAddress(tile);
    if (valid_rows >= kRows) {
#pragma unroll
      for (int i = 0; i < D::kPasses; ++i) {
        const int row = deal.row + i * D::kRowsPerPass;
        ptx::CpAsync16(shared + Layout::Offset(row, deal.chunk), source, false);
        source += pass_bytes;
      }
    } else {
#pragma unroll
      for (int i = 0; i < D::kPasses; ++i) {
        const int row = deal.row + i * D::kRowsPerPass;
        const bool zero = row >= valid_rows;
        ptx::CpAsync16(shared + Layout::Offset(row, deal.chunk), zero ? base : source, zero);
        source += pass_bytes;
      }
    }
    return;
  }
#pragma unroll 1
  for (int i = 0; i < D::kPasses; ++i) {
    const int row = deal.row + i * D::kRowsPerPass;
    const int here = row < valid_rows ? bytes : 0;
    // Two bytes at a time: every dtype's own alignment allows it.
    auto* target = reinterpret_cast<uint16_t*>(tile + Layout::Offset(row, deal.chunk));
#pragma unroll 1
    for (int w = 0; w < 8; ++w) {
      target[w] = 2 * w < here ? reinterpret_cast<const uint16_t*>(source)[w] : uint16_t{0};
    }
    source += pass_bytes;
  }
}

// Stores kRows rows from shared to global, the counterpart of LoadTile.
template <class Layout, int kRows, int kThreads>
__device__ __forceinline__ void StoreTile(const unsigned char* tile, unsigned char* base,
                                          int64_t row_stride_bytes, int valid_rows, int row_bytes,
                                          bool aligned) {
  using D = Deal<Layout, kRows, kThreads>;
  const D deal;
  if (deal.idle()) return;
  const int bytes = ChunkBytes(row_bytes, deal.chunk);
#pragma unroll 1
  for (int row = deal.row; row < kRows && row < valid_rows; row += D::kRowsPerPass) {
    unsigned char* target = base + row * row_stride_bytes + 16 * deal.chunk;
    const unsigned char* source = tile + Layout::Offset(row, deal.chunk);
    if (aligned && bytes == 16) {
      *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(source);
    } else {
      for (int w = 0; 2 * w < bytes; ++w) {
        reinterpret_cast<uint16_t*>(target)[w] = reinterpret_cast<const uint16_t*>(source)[w];
      }
    }
  }
}

}  // namespace attnd::kernels::cuda::generic

#endif  // ATTND_KERNELS_CUDA_GENERIC_TILE_CUH_
