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

// A tensor of the problem, dense [batch, heads, len, head_dim], in fp64.
std::vector<double> Densify(const AttentionProblem& p, const void* tensor, const Strides& strides,
                            int64_t heads, int64_t len) {
  std::vector<double> dense;
  dense.reserve(p.batch * heads * len * p.head_dim);
  for (int64_t batch = 0; batch < p.batch; ++batch) {
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t row = 0; row < len; ++row) {
        const int64_t first = batch * strides.batch + head * strides.head + row * strides.row;
        for (int64_t d = 0; d < p.head_dim; ++d) {
          dense.push_back(kernels::LoadElement(tensor, first + d, p.dtype));
        }
      }
    }
  }
  return dense;
}

struct Inputs {
  const AttentionProblem& p;
  const float* alibi_slopes;
  std::vector<double> q, k, v;
};

// One (batch, head, row) of a problem.
struct Row {
  const Inputs& in;
  int64_t batch, head, i;

  const double* Query() const {
    const AttentionProblem& p = in.p;
    return &in.q[((batch * p.q_heads + head) * p.q_len + i) * p.head_dim];
  }
  // Row j of K or V.
  const double* Key(const std::vector<double>& tensor, int64_t j) const {
    const AttentionProblem& p = in.p;
    const int64_t kv_head = head * p.kv_heads / p.q_heads;
    return &tensor[((batch * p.kv_heads + kv_head) * p.kv_len + j) * p.head_dim];
  }

  double Score(int64_t j) const {
    const AttentionProblem& p = in.p;
    double x = 0;
    for (int64_t d = 0; d < p.head_dim; ++d) x += Query()[d] * Key(in.k, j)[d];
    x *= p.scale;
    if (p.softcap > 0) x = p.softcap * std::tanh(x / p.softcap);
    if (p.alibi) {
      x -= in.alibi_slopes[head] * std::fabs(static_cast<double>(i + p.kv_len - p.q_len - j));
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
  const AttentionProblem& p = row.in.p;
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
      const double* v = row.Key(row.in.v, j);
      for (int64_t d = 0; d < p.head_dim; ++d) o[d] += rounded * v[d];
    }
  }
  for (double value : o) result.o.push_back(sum > 0 ? Round(p, rounding, value / sum) : 0);
  result.lse.push_back(sum > 0 ? max_score + std::log(sum) : -kInfinity);
}

}  // namespace

NaiveResult NaiveAttention(const AttentionProblem& problem, const AttentionArgs& args,
                           Rounding rounding) {
  const AttentionProblem& p = problem;
  const Inputs inputs{p, args.alibi_slopes, Densify(p, args.q, args.q_strides, p.q_heads, p.q_len),
                      Densify(p, args.k, args.k_strides, p.kv_heads, p.kv_len),
                      Densify(p, args.v, args.v_strides, p.kv_heads, p.kv_len)};
  NaiveResult result;
  for (int64_t batch = 0; batch < problem.batch; ++batch) {
    for (int64_t head = 0; head < problem.q_heads; ++head) {
      for (int64_t i = 0; i < problem.q_len; ++i) {
        ComputeRow({inputs, batch, head, i}, rounding, result);
      }
    }
  }
  return result;
}

}  // namespace attnd::testing
