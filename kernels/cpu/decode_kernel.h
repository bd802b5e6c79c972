// The seam of the decode kernels, as flash_kernel.h is that of the others: one query position,
// bound by reading K and V.
#ifndef ATTND_KERNELS_CPU_DECODE_KERNEL_H_
#define ATTND_KERNELS_CPU_DECODE_KERNEL_H_

#include <cstdint>

#include "kernels/cpu/flash_kernel.h"

namespace attnd::kernels::cpu {

// Keys of a split are [begin, begin + kDecodeSplitKeys), begin a multiple of it: the cuts depend on
// the sequence alone. At head_dim 128 in bf16 a split reads 512 KiB, some 50 us of a core's share
// of the memory, and leaves one partial result a head, 1/1000 of that.
inline constexpr int64_t kDecodeSplitKeys = 1024;

// One translation unit per instruction set exports exactly one symbol, of this type.
struct DecodeKernel {
  const char* arch;
  int64_t kv_tile;  // keys

  // Floats of a partial result of `group` heads, and bytes of scratch, aligned to 64 bytes.
  int64_t (*partial_elems)(int64_t group, int64_t head_dim);
  int64_t (*scratch_bytes)(int64_t group, int64_t head_dim);

  // All heads of the group, whose q_len is 1, on the keys of [key_begin, key_end) that they see:
  // writes one partial result.
  void (*run)(const GroupTile& tile, int64_t key_begin, int64_t key_end, float* partial,
              void* scratch);
  // Writes O and LSE from the partial results of all splits, in their order. They lie one after the
  // other.
  void (*merge)(const GroupTile& tile, const float* partials, int64_t splits);
};

extern const DecodeKernel kDecodePortable;
#if defined(__x86_64__)
extern const DecodeKernel kDecodeAvx2;
extern const DecodeKernel kDecodeAvx512;
#endif

}  // namespace attnd::kernels::cpu

#endif  // ATTND_KERNELS_CPU_DECODE_KERNEL_H_
