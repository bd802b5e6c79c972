#include "client/tools/verify.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/reference/reference.h"

namespace attnd::tools {
namespace {

using kernels::AttentionProblem;
using kernels::Strides;

kernels::DType ToKernels(DType dtype) {
  return dtype == DType::kFloat32   ? kernels::DType::kF32
         : dtype == DType::kFloat16 ? kernels::DType::kF16
                                    : kernels::DType::kBF16;
}

kernels::MaskSpec MaskOf(const AttentionRequest& request) {
  kernels::MaskSpec mask;
  mask.causal.alignment = request.causal == Causal::kTopLeft       ? kernels::Causal::kTopLeft
                          : request.causal == Causal::kBottomRight ? kernels::Causal::kBottomRight
                                                                   : kernels::Causal::kNone;
  if (request.window_left) mask.window.left = *request.window_left;
  if (request.window_right) mask.window.right = *request.window_right;
  return mask;
}

// Extents of one tensor; packed ones have batch 1 and all their tokens as len.
struct Extents {
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t len = 0;
  int64_t head_dim = 0;
};

absl::StatusOr<Extents> ExtentsOf(const char* name, const TensorView& view, Layout layout,
                                  bool may_lack_heads) {
  std::vector<int64_t> shape = view.shape;
  if (layout == Layout::kTHD) shape.insert(shape.begin(), 1);
  const size_t head_axis = layout == Layout::kBHSD ? 1 : 2;
  if (may_lack_heads && shape.size() == 3) shape.insert(shape.begin() + head_axis, 1);
  if (shape.size() != 4) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " has ", view.shape.size(), " axes, which do not fit the layout"));
  }
  return Extents{shape[0], shape[head_axis], shape[3 - head_axis], shape[3]};
}

Strides StridesOf(const Extents& extents, Layout layout) {
  return layout == Layout::kBHSD ? kernels::BHSD(extents.heads, extents.len, extents.head_dim)
                                 : kernels::BSHD(extents.heads, extents.len, extents.head_dim);
}

const void* At(const TensorView& view, int64_t offset_elems) {
  return static_cast<const unsigned char*>(view.data) + offset_elems * SizeBytes(view.dtype);
}

int64_t Rows(const AttentionProblem& problem) {
  return problem.batch * problem.q_heads * problem.q_len;
}

}  // namespace

double ErrorBound(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 2e-6;
    case DType::kFloat16:
      return 4.5e-4;
    case DType::kBFloat16:
      return 3.5e-3;
  }
  return 0;
}

absl::StatusOr<std::vector<Expected::Piece>> Expected::Split(const AttentionRequest& request) {
  const bool packed = request.layout == Layout::kTHD;
  const auto q = ExtentsOf("q", request.q, request.layout, false);
  if (!q.ok()) return q.status();
  const auto kv = ExtentsOf("k", request.k, request.layout, true);
  if (!kv.ok()) return kv.status();
  const std::vector<int64_t> q_ends =
      packed ? request.cu_seqlens_q : std::vector<int64_t>{0, q->len};
  const std::vector<int64_t> kv_ends =
      packed ? request.cu_seqlens_kv : std::vector<int64_t>{0, kv->len};
  if (q_ends.empty() || q_ends.size() != kv_ends.size() || q_ends.back() != q->len ||
      kv_ends.back() != kv->len) {
    return absl::InvalidArgumentError("cu_seqlens do not fit q and k");
  }
  std::vector<Piece> pieces;
  for (size_t i = 0; i + 1 < q_ends.size(); ++i) {
    Piece piece;
    piece.problem = {ToKernels(request.q.dtype),
                     q->batch,
                     q->heads,
                     kv->heads,
                     q_ends[i + 1] - q_ends[i],
                     kv_ends[i + 1] - kv_ends[i],
                     q->head_dim,
                     MaskOf(request)};
    piece.problem.scale = request.scale.value_or(kernels::DefaultScale(q->head_dim));
    piece.problem.softcap = request.softcap.value_or(0);
    piece.problem.alibi = !request.alibi_slopes.empty();
    if (absl::Status status = kernels::Validate(piece.problem); !status.ok()) return status;
    piece.args.q_strides = StridesOf(*q, request.layout);
    piece.args.k_strides = piece.args.v_strides = StridesOf(*kv, request.layout);
    piece.o_offset_elems = q_ends[i] * piece.args.q_strides.row;
    piece.args.q = At(request.q, piece.o_offset_elems);
    piece.args.k = At(request.k, kv_ends[i] * piece.args.k_strides.row);
    piece.args.v = At(request.v, kv_ends[i] * piece.args.v_strides.row);
    piece.lse_offset_elems = q_ends[i];
    piece.lse_head_stride = q->len;
    piece.lse_batch_stride = q->heads * q->len;
    pieces.push_back(piece);
  }
  return pieces;
}

absl::StatusOr<Expected> Expected::Compute(const AttentionRequest& request) {
  auto pieces = Split(request);
  if (!pieces.ok()) return pieces.status();
  Expected expected;
  expected.dtype_ = request.q.dtype;
  expected.alibi_slopes_ = request.alibi_slopes;
  expected.pieces_ = *std::move(pieces);
  int64_t rows = 0;
  int64_t elems = 0;
  for (const Piece& piece : expected.pieces_) {
    rows += Rows(piece.problem);
    elems += Rows(piece.problem) * piece.problem.head_dim;
  }
  expected.lse_.resize(rows);
  expected.o_.resize(elems);
  double* o = expected.o_.data();
  double* lse = expected.lse_.data();
  for (Piece& piece : expected.pieces_) {
    piece.args.alibi_slopes = expected.alibi_slopes_.data();
    kernels::ReferenceAttention(piece.problem, piece.args, o, lse);
    o += Rows(piece.problem) * piece.problem.head_dim;
    lse += Rows(piece.problem);
  }
  return expected;
}

std::vector<double> Expected::OrderO(const Tensor& o) const {
  std::vector<double> ordered;
  ordered.reserve(o_.size());
  for (const Piece& piece : pieces_) {
    const AttentionProblem& problem = piece.problem;
    for (int64_t row = 0; row < Rows(problem); ++row) {
      const int64_t i = row % problem.q_len;
      const int64_t head = row / problem.q_len % problem.q_heads;
      const int64_t batch = row / problem.q_len / problem.q_heads;
      const Strides& strides = piece.args.q_strides;
      const int64_t at =
          piece.o_offset_elems + batch * strides.batch + head * strides.head + i * strides.row;
      for (int64_t d = 0; d < problem.head_dim; ++d) {
        ordered.push_back(kernels::LoadElement(o.bytes.data(), at + d, problem.dtype));
      }
    }
  }
  return ordered;
}

std::vector<double> Expected::OrderLse(const Tensor& lse) const {
  std::vector<double> ordered;
  ordered.reserve(lse_.size());
  for (const Piece& piece : pieces_) {
    for (int64_t row = 0; row < Rows(piece.problem); ++row) {
      const int64_t i = row % piece.problem.q_len;
      const int64_t head = row / piece.problem.q_len % piece.problem.q_heads;
      const int64_t batch = row / piece.problem.q_len / piece.problem.q_heads;
      const int64_t at = piece.lse_offset_elems + batch * piece.lse_batch_stride +
                         head * piece.lse_head_stride + i;
      ordered.push_back(kernels::LoadElement(lse.bytes.data(), at, kernels::DType::kF32));
    }
  }
  return ordered;
}

Verification Expected::Check(const AttentionResult& result) const {
  Verification verification;
  verification.bound = ErrorBound(dtype_);
  verification.rel_error = kernels::RelativeError(OrderO(result.o), o_);
  if (result.lse) {
    verification.lse_rel_error = result.lse->bytes.size() == 4 * lse_.size()
                                     ? kernels::RelativeError(OrderLse(*result.lse), lse_)
                                     : std::numeric_limits<double>::infinity();
  }
  return verification;
}

}  // namespace attnd::tools
