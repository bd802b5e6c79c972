// One attention problem: what it is (AttentionProblem, a printable value) and where its memory lies
// (AttentionArgs). The semantics, which every backend keeps and tests pin, are those of
// proto/attnd/v1/attnd.proto.
#ifndef ATTND_KERNELS_ATTENTION_H_
#define ATTND_KERNELS_ATTENTION_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "kernels/dtype.h"
#include "kernels/kv_view.h"
#include "kernels/mask.h"

namespace attnd::kernels {

// Registers and shared memory of every kernel are planned for at most this.
inline constexpr int64_t kMaxHeadDim = 256;

// Everything that decides an answer, but the data. A packed request is a list of such problems, one
// per sequence.
struct AttentionProblem {
  DType dtype = DType::kF32;
  int64_t batch = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;  // divides q_heads; query head h reads KV head h / (q_heads / kv_heads)
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t head_dim = 0;
  MaskSpec mask;
  float scale = 0;     // finite, > 0
  float softcap = 0;   // finite; 0: off
  bool alibi = false;  // args.alibi_slopes holds q_heads slopes

  int64_t group() const { return q_heads / kv_heads; }
  // No output element at all. A problem with kv_len 0 is not empty: its O is 0.
  bool empty() const { return batch == 0 || q_heads == 0 || q_len == 0; }
  friend bool operator==(const AttentionProblem&, const AttentionProblem&) = default;
};

// "bf16 b1 hq9 hkv3 q384 kv384 d64 causal=bottom_right window=-,- scale=0.125"
std::string ToString(const AttentionProblem& problem);

// 1 / sqrt(head_dim), the default scale. head_dim > 0.
float DefaultScale(int64_t head_dim);

// OK, or INVALID_ARGUMENT naming the field and the values. Lengths and counts must be >= 0,
// head_dim in 1..kMaxHeadDim, q_heads a multiple of kv_heads (both may be 0), products within
// int64.
absl::Status Validate(const AttentionProblem& problem);

// Multiply-adds times two, as TFLOP/s are counted: 4 * batch * q_heads * head_dim * (visible
// row-key pairs).
double Flops(const AttentionProblem& problem);
// Of the query positions [q_begin, q_end) alone.
double Flops(const AttentionProblem& problem, int64_t q_begin, int64_t q_end);

// Distance in elements from one batch, head or row to the next; elements of a row are adjacent. Any
// order of axes.
struct Strides {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
  friend bool operator==(const Strides&, const Strides&) = default;
};

// Dense [batch, heads, len, head_dim].
constexpr Strides BHSD(int64_t heads, int64_t len, int64_t head_dim) {
  return {heads * len * head_dim, len * head_dim, head_dim};
}
// Dense [batch, len, heads, head_dim]; also one sequence of packed [total_tokens, heads, head_dim].
constexpr Strides BSHD(int64_t heads, int64_t len, int64_t head_dim) {
  return {len * heads * head_dim, head_dim, heads * head_dim};
}

// The memory of one problem. Not owned; q, k, v, alibi_slopes are only read, o and lse only
// written, and neither may overlap anything else. Any alignment that the dtype itself needs.
// Pointers to nothing-to-read may be null.
struct AttentionArgs {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* o = nullptr;
  Strides q_strides;
  Strides k_strides;
  Strides v_strides;
  Strides o_strides;
  // fp32 [batch, q_heads, q_len] with rows adjacent and these strides; null: not wanted.
  float* lse = nullptr;
  int64_t lse_batch_stride = 0;
  int64_t lse_head_stride = 0;
  // fp32, q_heads of them; read only if problem.alibi.
  const float* alibi_slopes = nullptr;
};

inline KvView KeysOf(const AttentionProblem& problem, const AttentionArgs& args, int64_t batch,
                     int64_t kv_head) {
  return MakeKvView(args.k, batch * args.k_strides.batch + kv_head * args.k_strides.head,
                    args.k_strides.row, SizeBytes(problem.dtype));
}

inline KvView ValuesOf(const AttentionProblem& problem, const AttentionArgs& args, int64_t batch,
                       int64_t kv_head) {
  return MakeKvView(args.v, batch * args.v_strides.batch + kv_head * args.v_strides.head,
                    args.v_strides.row, SizeBytes(problem.dtype));
}

}  // namespace attnd::kernels

#endif  // ATTND_KERNELS_ATTENTION_H_
