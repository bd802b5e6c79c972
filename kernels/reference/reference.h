// Attention in fp64, written to be read: what every other backend is judged by. The last backend of
// the registry, never chosen silently.
#ifndef ATTND_KERNELS_REFERENCE_REFERENCE_H_
#define ATTND_KERNELS_REFERENCE_REFERENCE_H_

#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "kernels/attention.h"
#include "kernels/backend.h"
#include "kernels/registry.h"

namespace attnd::kernels {

// The backend "reference". It uses the caller's thread alone, whatever options.threads says.
std::unique_ptr<Backend> CreateReference(const BackendOptions& options);

// The functions below take a problem that has passed Validate() and read the inputs of `args` (q,
// k, v, alibi_slopes); its outputs are not looked at. They write caller-owned memory, are
// thread-safe, and hold one KV head in fp64 while they run: 16 * kv_len * head_dim bytes.
//
// A row without a visible key, or whose visible scores are all -inf: O = 0, LSE = -inf.

// `o`: dense [batch, q_heads, q_len, head_dim]. `lse`: dense [batch, q_heads, q_len], or null.
void ReferenceAttention(const AttentionProblem& problem, const AttentionArgs& args, double* o,
                        double* lse);

// One row of the output.
struct RowId {
  int64_t batch = 0;
  int64_t q_head = 0;
  int64_t row = 0;
};

// The chosen rows alone, for problems too long to compute whole. `o`: dense [rows.size(),
// head_dim]. `lse`: [rows.size()], or null. Quickest when rows of one KV head follow each other.
void ReferenceRows(const AttentionProblem& problem, const AttentionArgs& args,
                   absl::Span<const RowId> rows, double* o, double* lse);

// ||actual - expected|| / ||expected||, Euclidean, both of one size. NaN, inf and -inf must stand
// at the same positions, otherwise the error is infinite; where they do, they count as equal. 0 for
// two zero vectors; infinite if expected alone is zero.
double RelativeError(absl::Span<const double> actual, absl::Span<const double> expected);

}  // namespace attnd::kernels

#endif  // ATTND_KERNELS_REFERENCE_REFERENCE_H_
