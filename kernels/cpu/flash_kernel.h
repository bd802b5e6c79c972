// The seam between the backend, built for the baseline, and the kernel, built once per instruction
// set: plain data and one table of function pointers each. Nothing with inline code of its own may
// stand here, apart from what is always inlined: the linker keeps one copy of an inline function,
// and must never keep one that was built for a newer instruction set.
#ifndef ATTND_KERNELS_CPU_FLASH_KERNEL_H_
#define ATTND_KERNELS_CPU_FLASH_KERNEL_H_

#include <cstdint>

#include "kernels/kv_view.h"
#include "kernels/mask.h"

namespace attnd::kernels::cpu {

enum class Element : uint8_t { kF32, kF16, kBF16 };

// One query tile of one head: rows [q_begin, q_begin + rows) of a sequence.
struct FlashTile {
  const unsigned char* q = nullptr;  // the tile's first row
  unsigned char* o = nullptr;        // likewise
  float* lse = nullptr;              // likewise, rows adjacent; null: not wanted
  int64_t q_row_stride_bytes = 0;
  int64_t o_row_stride_bytes = 0;
  KvView k;
  KvView v;
  int64_t q_begin = 0;
  int64_t rows = 0;  // 1 .. the kernel's q_tile
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t head_dim = 0;  // 1 .. 256
  Band band;             // the problem's resolved mask
  float scale = 0;
  float softcap = 0;      // 0: off
  float alibi_slope = 0;  // of this head; 0: off, which changes no finite score
  Element element = Element::kF32;
  bool sees_few_keys = false;  // all rows of the sequence see all keys, 1 .. kFewKeys of config.h
};

// What one translation unit per instruction set exports: exactly one symbol, of this type.
struct FlashKernel {
  const char* arch;  // as it stands in a kernel's name
  int64_t q_tile;    // rows
  int64_t kv_tile;   // keys

  // Computes one tile: writes its O and LSE once. `scratch` holds scratch_bytes(head_dim), aligned
  // to 64 bytes; its contents on entry do not matter.
  void (*run)(const FlashTile& tile, void* scratch);
  int64_t (*scratch_bytes)(int64_t head_dim);

  // The vector functions on their own, for tests: out[i] = f(in[i]), count a multiple of 16.
  // exp and exp2 (2^x) are for arguments <= 0.
  void (*exp)(const float* in, float* out, int64_t count);
  void (*exp2)(const float* in, float* out, int64_t count);
  void (*tanh)(const float* in, float* out, int64_t count);
};

// Query rows of all heads that share one KV head: rows [row_begin, row_begin + rows), where row r
// is position r / group of head r % group.
struct GroupTile {
  const unsigned char* q = nullptr;  // of position 0 of the first head
  unsigned char* o = nullptr;        // likewise
  float* lse = nullptr;              // likewise, positions adjacent; null: not wanted
  int64_t q_row_stride_bytes = 0;
  int64_t q_head_stride_bytes = 0;
  int64_t o_row_stride_bytes = 0;
  int64_t o_head_stride_bytes = 0;
  int64_t lse_head_stride = 0;
  KvView k;
  KvView v;
  int64_t group = 1;
  int64_t row_begin = 0;
  int64_t rows = 0;  // 1 .. the kernel's task_rows
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t head_dim = 0;  // 1 .. 256
  Band band;             // the problem's resolved mask
  float scale = 0;
  float softcap = 0;                    // 0: off
  const float* alibi_slopes = nullptr;  // of the group's heads; null: off
  Element element = Element::kF32;
};

// A kernel for tiles of that kind. Which rows share a tile changes no row's bits.
struct GroupKernel {
  const char* arch;  // as it stands in a kernel's name
  int64_t q_block;   // rows that are masked together
  int64_t kv_tile;   // keys, likewise
  // For this element and head_dim: rows of a tile at most, and bytes of scratch.
  int64_t (*task_rows)(Element element, int64_t head_dim);
  int64_t (*scratch_bytes)(Element element, int64_t head_dim);
  // As FlashKernel::run.
  void (*run)(const GroupTile& tile, void* scratch);

  // The vector function on its own, for tests: out[i] = 2^in[i], in[i] <= 0, count a multiple
  // of 16.
  void (*exp2)(const float* in, float* out, int64_t count);
};

extern const FlashKernel kFlashPortable;
#if defined(__x86_64__)
extern const FlashKernel kFlashAvx2;
extern const FlashKernel kFlashAvx512;
// bf16 alone.
extern const FlashKernel kFlashAvx512BF16;
// bf16 and fp16 alone.
extern const GroupKernel kFlashAmx;
#endif

}  // namespace attnd::kernels::cpu

#endif  // ATTND_KERNELS_CPU_FLASH_KERNEL_H_
