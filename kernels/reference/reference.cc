#include "kernels/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace attnd::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One KV head in fp64: K and V, each [kv_len, head_dim].
struct KvHead {
  std::vector<double> k;
  std::vector<double> v;
};

void LoadRows(const KvView& view, const AttentionProblem& p, std::vector<double>& rows) {
  rows.resize(p.kv_len * p.head_dim);
  for (int64_t key = 0; key < p.kv_len; ++key) {
    for (int64_t d = 0; d < p.head_dim; ++d) {
      rows[key * p.head_dim + d] = LoadElement(view.Row(key), d, p.dtype);
    }
  }
}

// Four partial sums, so that the additions do not wait for each other.
double Dot(const double* a, const double* b, int64_t size) {
  double sum[4] = {0, 0, 0, 0};
  int64_t i = 0;
  for (; i + 4 <= size; i += 4) {
    for (int lane = 0; lane < 4; ++lane) sum[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < size; ++i) sum[0] += a[i] * b[i];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Computes rows of one problem, holding the KV head that the last one needed.
class RowComputer {
 public:
  RowComputer(const AttentionProblem& problem, const AttentionArgs& args)
      : p_(problem),
        args_(args),
        band_(problem.mask.Resolve(problem.q_len, problem.kv_len)),
        q_(problem.head_dim),
        scores_(problem.kv_len) {}

  // `o`: [head_dim]. Returns the row's LSE.
  double Compute(const RowId& id, double* o) {
    std::fill_n(o, p_.head_dim, 0.0);
    const KeyRange keys = band_.RowKeys(id.row, p_.kv_len);
    if (keys.empty()) return -kInfinity;
    LoadHead(id.batch, id.q_head / p_.group());
    LoadQuery(id);

    double max_score = -kInfinity;
    for (int64_t key = keys.begin; key < keys.end; ++key) {
      scores_[key] = Score(id, key);
      // A NaN becomes the maximum, and so reaches the whole row.
      if (!(scores_[key] <= max_score)) max_score = scores_[key];
    }
    if (max_score == -kInfinity) return -kInfinity;

    double sum = 0;
    for (int64_t key = keys.begin; key < keys.end; ++key) {
      const double weight = std::exp(scores_[key] - max_score);
      sum += weight;
      const double* v = &head_.v[key * p_.head_dim];
      for (int64_t d = 0; d < p_.head_dim; ++d) o[d] += weight * v[d];
    }
    for (int64_t d = 0; d < p_.head_dim; ++d) o[d] /= sum;
    return max_score + std::log(sum);
  }

 private:
  void LoadHead(int64_t batch, int64_t kv_head) {
    if (batch == batch_ && kv_head == kv_head_) return;
    batch_ = batch;
    kv_head_ = kv_head;
    LoadRows(KeysOf(p_, args_, batch, kv_head), p_, head_.k);
    LoadRows(ValuesOf(p_, args_, batch, kv_head), p_, head_.v);
  }

  void LoadQuery(const RowId& id) {
    const Strides& strides = args_.q_strides;
    const int64_t first =
        id.batch * strides.batch + id.q_head * strides.head + id.row * strides.row;
    for (int64_t d = 0; d < p_.head_dim; ++d) q_[d] = LoadElement(args_.q, first + d, p_.dtype);
  }

  double Score(const RowId& id, int64_t key) const {
    double x = p_.scale * Dot(q_.data(), &head_.k[key * p_.head_dim], p_.head_dim);
    if (p_.softcap > 0) x = p_.softcap * std::tanh(x / p_.softcap);
    if (p_.alibi) {
      const double distance = static_cast<double>(std::abs(id.row + p_.kv_len - p_.q_len - key));
      x -= args_.alibi_slopes[id.q_head] * distance;
    }
    return x;
  }

  const AttentionProblem& p_;
  const AttentionArgs& args_;
  const Band band_;
  KvHead head_;
  int64_t batch_ = -1;
  int64_t kv_head_ = -1;
  std::vector<double> q_;
  std::vector<double> scores_;
};

class Reference final : public Backend {
 public:
  absl::string_view Name() const override { return "reference"; }

  absl::Status Supports(const AttentionProblem&) const override { return absl::OkStatus(); }

  // It has no tiles: a row at a time, a key at a time.
  KernelPlan Plan(const AttentionProblem& problem) const override {
    const LaunchKey key = KeyOf(problem);
    return {.kernel = KernelName(key, "reference"), .key = key, .q_tile = 1, .kv_tile = 1};
  }

  int64_t WorkspaceBytes(absl::Span<const AttentionTask>) const override { return 0; }

  absl::Status Run(absl::Span<const AttentionTask> tasks, void*, Stream) override {
    for (const AttentionTask& task : tasks) RunTask(task);
    return absl::OkStatus();
  }

 private:
  static void RunTask(const AttentionTask& task) {
    const AttentionProblem& p = task.problem;
    const int64_t q_end = std::min(task.q_end, p.q_len);
    RowComputer computer(p, task.args);
    std::vector<double> o(p.head_dim);
    for (RowId id; id.batch < p.batch; ++id.batch) {
      for (id.q_head = 0; id.q_head < p.q_heads; ++id.q_head) {
        for (id.row = task.q_begin; id.row < q_end; ++id.row) {
          const double lse = computer.Compute(id, o.data());
          Store(p, task.args, id, o, lse);
        }
      }
    }
  }

  static void Store(const AttentionProblem& p, const AttentionArgs& args, const RowId& id,
                    const std::vector<double>& o, double lse) {
    const Strides& strides = args.o_strides;
    const int64_t first =
        id.batch * strides.batch + id.q_head * strides.head + id.row * strides.row;
    for (int64_t d = 0; d < p.head_dim; ++d) {
      StoreElement(args.o, first + d, p.dtype, static_cast<float>(o[d]));
    }
    if (args.lse != nullptr) {
      args.lse[id.batch * args.lse_batch_stride + id.q_head * args.lse_head_stride + id.row] =
          static_cast<float>(lse);
    }
  }
};

}  // namespace

std::unique_ptr<Backend> CreateReference(const BackendOptions&) {
  return std::make_unique<Reference>();
}

void ReferenceAttention(const AttentionProblem& problem, const AttentionArgs& args, double* o,
                        double* lse) {
  RowComputer computer(problem, args);
  int64_t index = 0;
  for (RowId id; id.batch < problem.batch; ++id.batch) {
    for (id.q_head = 0; id.q_head < problem.q_heads; ++id.q_head) {
      for (id.row = 0; id.row < problem.q_len; ++id.row, ++index) {
        const double row_lse = computer.Compute(id, o + index * problem.head_dim);
        if (lse != nullptr) lse[index] = row_lse;
      }
    }
  }
}

void ReferenceRows(const AttentionProblem& problem, const AttentionArgs& args,
                   absl::Span<const RowId> rows, double* o, double* lse) {
  RowComputer computer(problem, args);
  for (size_t i = 0; i < rows.size(); ++i) {
    const double row_lse = computer.Compute(rows[i], o + i * problem.head_dim);
    if (lse != nullptr) lse[i] = row_lse;
  }
}

double RelativeError(absl::Span<const double> actual, absl::Span<const double> expected) {
  if (actual.size() != expected.size()) return kInfinity;
  double difference2 = 0;
  double norm2 = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double a = actual[i];
    const double b = expected[i];
    if (std::isfinite(a) && std::isfinite(b)) {
      difference2 += (a - b) * (a - b);
      norm2 += b * b;
    } else if (a != b && !(std::isnan(a) && std::isnan(b))) {
      return kInfinity;
    }
  }
  if (difference2 == 0) return 0;
  return norm2 == 0 ? kInfinity : std::sqrt(difference2 / norm2);
}

}  // namespace attnd::kernels
