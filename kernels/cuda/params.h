// What a CUDA launch is given: plain structs, the same for host and device.
#ifndef ATTND_KERNELS_CUDA_PARAMS_H_
#define ATTND_KERNELS_CUDA_PARAMS_H_

#include <cstdint>

namespace attnd::kernels::cuda {

// Strides in elements.
struct TensorDesc {
  int64_t batch_stride;
  int64_t head_stride;
  int64_t row_stride;
};

// One problem of a launch. Lengths are below 2^30; the band (kernels/mask.h) is clamped to +-2^30.
struct ProblemDesc {
  const void* q;
  const void* k;
  const void* v;
  void* o;
  float* lse;                 // null: not wanted
  const float* alibi_slopes;  // null: none
  TensorDesc q_desc;
  TensorDesc k_desc;
  TensorDesc v_desc;
  TensorDesc o_desc;
  int64_t lse_batch_stride;
  int64_t lse_head_stride;
  // Items of the launch's work list: this problem's are [first_item, first_item + n_q_tiles * batch
  // * q_heads), fewer than 2^31.
  int64_t first_item;
  int batch;
  int q_heads;
  int group;
  int q_len;
  int kv_len;
  int head_dim;
  int n_q_tiles;
  // Where the mask makes tiles differ: query heads whose tiles are dealt together, for their K and
  // V fit the L2 cache, which all their tiles then read them from; and how many such sections there
  // are before the last, which has all other heads.
  int section_heads;
  int small_sections;
  int band_lo;
  int band_hi;
  // x = scale * q.k; with a softcap (> 0) x = softcap * tanh(scale * q.k), the cap divided into it.
  float scale;
  float softcap;
  // 16-byte loads and stores may be used: every base and stride is a multiple of 16 bytes.
  int aligned;
};

// By value up to this many: 16 * 224 bytes fit the 4 KB that every driver takes; in device memory
// beyond.
inline constexpr int kInlineProblems = 16;

struct LaunchParams {
  ProblemDesc inline_problems[kInlineProblems];
  const ProblemDesc* problems;  // null: inline
  int n_problems;
  int64_t n_items;
  // Device memory: the next item. 0 before the launch, and again after it.
  unsigned long long* next_item;
  // Device memory, added up over launches: query tiles that met a NaN or infinity in V and had it
  // given back exactly. For halves only where it stood beside a mask.
  unsigned long long* poisoned_tiles;
};

}  // namespace attnd::kernels::cuda

#endif  // ATTND_KERNELS_CUDA_PARAMS_H_
