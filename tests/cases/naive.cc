#include "tests/cases/naive.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace attnd::testing {
namespace {

using kernels::AttentionArgs;
using kernels::AttentionProblem;
using kernels::Causal;
using kernels::Strides;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool Visible(const AttentionProblem& p, int64_t i, int64_t j) {
  const int64_t diagonal = i + p.kv_len - p.q_len;
  if (p.mask.causal.alignment == Causal::kTopLeft && j > i) return false;
  if (p.mask.causal.alignment == Causal::kBottomRight && j > diagonal) return false;
  return j >= diagonal - p.mask.window.left && j <= diagonal + p.mask.window.right;
}

// One (batch, head, row) of a problem.
struct Row {
  const AttentionProblem& p;
  const AttentionArgs& args;
  int64_t batch, head, i;

  double At(const void* tensor, const Strides& strides, int64_t at_head, int64_t at_row,
            int64_t d) const {
    return kernels::LoadElement(
        tensor, batch * strides.batch + at_head * strides.head + at_row * strides.row + d, p.dtype);
  }
  int64_t kv_head() const { return head * p.kv_heads / p.q_heads; }

  double Score(int64_t j) const {
    double x = 0;
    for (int64_t d = 0; d < p.head_dim; ++d) {
      x += At(args.q, args.q_strides, head, i, d) * At(args.k, args.k_strides, kv_head(), j, d);
    }
    x *= p.scale;
    if (p.softcap > 0) x = p.softcap * std::tanh(x / p.softcap);
    if (p.alibi) {
      x -= args.alibi_slopes[head] * std::fabs(static_cast<double>(i + p.kv_len - p.q_len - j));
    }
    return x;
  }
};

double Round(const AttentionProblem& p, Rounding rounding, double value) {
  if (rounding == Rounding::kNone) return value;
  float rounded;
  kernels::StoreElement(&rounded, 0, p.dtype, static_cast<float>(value));
  return kernels::LoadElement(&rounded, 0, p.dtype);
}

void ComputeRow(const Row& row, Rounding rounding, NaiveResult& result) {
  const AttentionProblem& p = row.p;
  std::vector<std::pair<int64_t, double>> scores;  // visible keys
  double max_score = -kInfinity;
  for (int64_t j = 0; j < p.kv_len; ++j) {
    if (!Visible(p, row.i, j)) continue;
    scores.emplace_back(j, row.Score(j));
    max_score = std::max(max_score, scores.back().second);
    result.max_abs_score = std::max(result.max_abs_score, std::fabs(scores.back().second));
  }
  double sum = 0;
  std::vector<double> o(p.head_dim);
  if (max_score > -kInfinity) {
    for (const auto& [j, score] : scores) {
      const double weight = std::exp(score - max_score);
      sum += weight;
      const double rounded = Round(p, rounding, weight);
      for (int64_t d = 0; d < p.head_dim; ++d) {
        o[d] += rounded * row.At(row.args.v, row.args.v_strides, row.kv_head(), j, d);
      }
    }
  }
  for (double value : o) result.o.push_back(sum > 0 ? Round(p, rounding, value / sum) : 0);
  result.lse.push_back(sum > 0 ? max_score + std::log(sum) : -kInfinity);
}

}  // namespace

NaiveResult NaiveAttention(const AttentionProblem& problem, const AttentionArgs& args,
                           Rounding rounding) {
  NaiveResult result;
  for (int64_t batch = 0; batch < problem.batch; ++batch) {
    for (int64_t head = 0; head < problem.q_heads; ++head) {
      for (int64_t i = 0; i < problem.q_len; ++i) {
        ComputeRow({problem, args, batch, head, i}, rounding, result);
      }
    }
  }
  return result;
}

}  // namespace attnd::testing
