// Answers against fp64, computed here with kernels/reference.
#ifndef ATTND_CLIENT_TOOLS_VERIFY_H_
#define ATTND_CLIENT_TOOLS_VERIFY_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "client/client.h"
#include "kernels/attention.h"

namespace attnd::tools {

// The error that a right answer stays within, relative in norm against fp64, on N(0,1) inputs.
double ErrorBound(DType dtype);

struct Verification {
  double rel_error = 0;
  absl::optional<double> lse_rel_error;
  double bound = 0;

  bool ok() const {  // NaN is not within any bound
    return rel_error <= bound && (!lse_rel_error || *lse_rel_error <= bound);
  }
};

// The right answer to one request. Constant once made; thread-safe.
class Expected {
 public:
  // Computes it, on this thread. INVALID_ARGUMENT if the request means no problem; its memory must
  // stay as long as this.
  static absl::StatusOr<Expected> Compute(const AttentionRequest& request);

  // `result` answers that request (its shape and dtype are the request's).
  Verification Check(const AttentionResult& result) const;

 private:
  // Part of a request that is one problem: all of it, or one sequence of a packed one.
  struct Piece {
    kernels::AttentionProblem problem;
    kernels::AttentionArgs args;
    int64_t o_offset_elems = 0;  // of its first element in O, which is laid out as Q
    int64_t lse_offset_elems = 0;
    int64_t lse_batch_stride = 0;
    int64_t lse_head_stride = 0;
  };

  static absl::StatusOr<std::vector<Piece>> Split(const AttentionRequest& request);
  // Elements in the order of o_ and lse_: pieces one after another, each [batch, heads, len, ...].
  std::vector<double> OrderO(const Tensor& o) const;
  std::vector<double> OrderLse(const Tensor& lse) const;

  DType dtype_ = DType::kFloat32;
  std::vector<float> alibi_slopes_;
  std::vector<Piece> pieces_;
  std::vector<double> o_;
  std::vector<double> lse_;
};

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_VERIFY_H_
