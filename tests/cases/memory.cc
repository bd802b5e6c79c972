#include "tests/cases/memory.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace attnd::testing {

using kernels::AttentionArgs;
using kernels::AttentionProblem;
using kernels::Band;
using kernels::DType;
using kernels::KeyRange;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<Extents> QueryExtents(const std::vector<AttentionProblem>& problems) {
  std::vector<Extents> extents;
  for (const auto& p : problems) extents.push_back({p.batch, p.q_heads, p.q_len, p.head_dim});
  return extents;
}

std::vector<Extents> KvExtents(const std::vector<AttentionProblem>& problems) {
  std::vector<Extents> extents;
  for (const auto& p : problems) extents.push_back({p.batch, p.kv_heads, p.kv_len, p.head_dim});
  return extents;
}

// LSE [batch, q_heads, q_len], one array a problem and one after the other: a row of q_len elements
// a head.
std::vector<Extents> LseExtents(const std::vector<AttentionProblem>& problems) {
  std::vector<Extents> extents;
  for (const auto& p : problems) extents.push_back({p.batch, 1, p.q_heads, p.q_len});
  return extents;
}

bool AnyRowSees(const Band& band, const AttentionProblem& p, int64_t key) {
  // Rows that see a key are contiguous: row + lo <= key <= row + hi.
  const int64_t first = std::max<int64_t>(0, key - band.hi);
  const int64_t last = std::min<int64_t>(p.q_len - 1, key - band.lo);
  return first <= last;
}

}  // namespace

CaseMemory::CaseMemory(const Case& c, const MemoryOptions& options)
    : options_(options),
      problems_(ProblemsOf(c)),
      q_(c.dtype, c.layout, options.placement, QueryExtents(problems_), options.seed + 1),
      k_(c.dtype, c.layout, options.placement, KvExtents(problems_), options.seed + 2),
      v_(c.dtype, c.layout, options.placement, KvExtents(problems_), options.seed + 3),
      o_(c.dtype, c.layout, options.placement, QueryExtents(problems_), options.seed + 4),
      lse_(DType::kF32, Layout::kBHSD, options.placement, LseExtents(problems_), options.seed + 5),
      alibi_slopes_(AlibiSlopes(c.q_heads)) {
  for (size_t i = 0; i < problems_.size(); ++i) {
    const Values values = DrawValues(problems_[i], c.distribution, options.seed * 1000 + i);
    const bool hidden =
        options.only_sequence >= 0 && i != static_cast<size_t>(options.only_sequence);
    if (!hidden) {
      q_.SetRegion(i, values.q);
      k_.SetRegion(i, values.k);
      v_.SetRegion(i, values.v);
      if (options.poison_hidden_keys) PoisonHiddenKeys(i);
      PoisonEdgeKeys(i, options.edge);
    } else {
      for (Buffer* buffer : {&q_, &k_, &v_}) buffer->SetRegion(i, kNaN);
    }
    args_.push_back({.q = q_.data(i),
                     .k = k_.data(i),
                     .v = v_.data(i),
                     .o = o_.data(i),
                     .q_strides = q_.region(i).strides,
                     .k_strides = k_.region(i).strides,
                     .v_strides = v_.region(i).strides,
                     .o_strides = o_.region(i).strides,
                     .lse = options.want_lse ? static_cast<float*>(lse_.data(i)) : nullptr,
                     .lse_batch_stride = lse_.region(i).strides.batch,
                     .lse_head_stride = lse_.region(i).strides.row,
                     .alibi_slopes = c.alibi ? alibi_slopes_.data() : nullptr});
  }
  FreezeInputs();
  ResetOutputs();
}

void CaseMemory::PoisonHiddenKeys(size_t i) {
  const AttentionProblem& p = problems_[i];
  const Band band = p.mask.Resolve(p.q_len, p.kv_len);
  for (int64_t key = 0; key < p.kv_len; ++key) {
    if (AnyRowSees(band, p, key)) continue;
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      for (int64_t head = 0; head < p.kv_heads; ++head) {
        for (int64_t d = 0; d < p.head_dim; ++d) {
          k_.Set(i, batch, head, key, d, d % 2 == 0 ? kNaN : kInf);
          v_.Set(i, batch, head, key, d, d % 2 == 0 ? kInf : kNaN);
        }
      }
    }
  }
}

void CaseMemory::PoisonEdgeKeys(size_t i, EdgePoison edge) {
  const AttentionProblem& p = problems_[i];
  if (edge == EdgePoison::kNone || p.q_len == 0) return;
  const KeyRange seen = p.mask.Resolve(p.q_len, p.kv_len).RowKeys(p.q_len / 2, p.kv_len);
  const auto poison = [&](Buffer& buffer, int64_t key, int64_t d, float value) {
    if (key < 0 || key >= p.kv_len) return;
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      for (int64_t head = 0; head < p.kv_heads; ++head) buffer.Set(i, batch, head, key, d, value);
    }
  };
  if (edge == EdgePoison::kValues) {
    poison(v_, seen.end, p.head_dim / 2, kNaN);
    poison(v_, seen.begin - 1, p.head_dim - 1, kNaN);
  } else {
    poison(k_, seen.end, p.head_dim / 2, kNaN);
    poison(k_, seen.begin - 1, p.head_dim - 1, kInf);
  }
}

std::vector<kernels::AttentionTask> CaseMemory::Tasks(const kernels::Backend& backend) const {
  std::vector<kernels::AttentionTask> tasks;
  for (size_t i = 0; i < problems_.size(); ++i) {
    if (options_.only_sequence >= 0 && i != static_cast<size_t>(options_.only_sequence)) continue;
    tasks.push_back({problems_[i], backend.Plan(problems_[i]), args_[i]});
  }
  return tasks;
}

void CaseMemory::FreezeInputs() {
  if (!options_.watch_inputs) return;
  for (Buffer* buffer : {&q_, &k_, &v_}) buffer->Freeze();
}

void CaseMemory::ResetOutputs() {
  for (Buffer* buffer : {&o_, &lse_}) buffer->FillWithSentinel();
}

std::string CaseMemory::Check() const {
  const struct {
    const char* name;
    const Buffer& buffer;
    bool used;
  } checks[] = {{"q", q_, options_.watch_inputs},
                {"k", k_, options_.watch_inputs},
                {"v", v_, options_.watch_inputs},
                {"o", o_, true},
                {"lse", lse_, options_.want_lse}};
  for (const auto& check : checks) {
    if (!check.used) continue;
    if (std::string wrong = check.buffer.Check(options_.only_sequence); !wrong.empty()) {
      return absl::StrCat(check.name, ": ", wrong);
    }
  }
  return "";
}

Values CaseMemory::ReadInputs(size_t i) const {
  const auto read = [i](const Buffer& buffer) {
    const std::vector<double> values = buffer.Get(i);
    return std::vector<float>(values.begin(), values.end());
  };
  return {read(q_), read(k_), read(v_)};
}

std::vector<unsigned char> CaseMemory::OutputBits(size_t i, Which which) const {
  std::vector<unsigned char> bits;
  if (which != Which::kLse) bits = o_.GetBits(i);
  if (which != Which::kO) {
    const std::vector<unsigned char> lse = lse_.GetBits(i);
    bits.insert(bits.end(), lse.begin(), lse.end());
  }
  return bits;
}

}  // namespace attnd::testing
