#include "server/scheduler/cost_model.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "kernels/launch_key.h"

namespace attnd::server {
namespace {

// Rows whose keys are counted to know those of all: their number is linear in the row, but for two
// bends, so that the middles of 16 equal stretches are off by a percent at most.
constexpr int64_t kRowSamples = 16;

// The weight of a batch once its key is settled, as elsewhere: a few batches settle it, ...
constexpr double kGain = 1.0 / 8;
// ... and one odd batch counts as no more than twice, or less than half, of what was expected.
const double kMostSurprise = std::log(2.0);

double Pairs(const kernels::AttentionProblem& problem) {
  if (problem.mask == kernels::MaskSpec()) {
    return static_cast<double>(problem.q_len) * static_cast<double>(problem.kv_len);
  }
  const kernels::Band band = problem.mask.Resolve(problem.q_len, problem.kv_len);
  const int64_t samples = std::min(problem.q_len, kRowSamples);
  double keys = 0;
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t row = (2 * i + 1) * problem.q_len / (2 * samples);
    keys += static_cast<double>(band.RowKeys(row, problem.kv_len).size());
  }
  return keys / static_cast<double>(samples) * static_cast<double>(problem.q_len);
}

// Queries and their answers, keys and values.
double Elements(const kernels::AttentionProblem& p) {
  const double rows = 2.0 * (static_cast<double>(p.q_heads) * static_cast<double>(p.q_len) +
                             static_cast<double>(p.kv_heads) * static_cast<double>(p.kv_len));
  return static_cast<double>(p.batch) * rows * static_cast<double>(p.head_dim);
}

CostTerms AmountsOf(const kernels::AttentionProblem& problem) {
  if (problem.empty()) return {1, 0, 0};
  const double flops = 4.0 * static_cast<double>(problem.batch) *
                       static_cast<double>(problem.q_heads) *
                       static_cast<double>(problem.head_dim) * Pairs(problem);
  return {1, flops, Elements(problem) * static_cast<double>(kernels::SizeBytes(problem.dtype))};
}

int HeadDimIndex(int head_dim_class) {
  int index = 0;
  for (const int smaller : {64, 96, 128, 192}) index += head_dim_class > smaller ? 1 : 0;
  return index;
}

int IndexOf(const kernels::LaunchKey& key) {
  int index = static_cast<int>(key.dtype);
  index = index * 5 + HeadDimIndex(key.head_dim_class);
  index = index * 3 + static_cast<int>(key.family);
  index = index * 2 + static_cast<int>(key.role);
  assert(0 <= index && index < CostModel::kKeys);
  return index;
}

double ToSeconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

void Work::Add(const Request& request) {
  for (const ProblemSlot& slot : request.problems) Add(slot.problem);
}

void Work::Add(const kernels::AttentionProblem& problem) {
  const int key = IndexOf(kernels::KeyOf(problem));
  auto item =
      std::find_if(items_.begin(), items_.end(), [&](const Item& i) { return i.key == key; });
  if (item == items_.end()) item = items_.insert(items_.end(), Item{key, {}});
  const CostTerms amounts = AmountsOf(problem);
  for (int term = 0; term < kCostTerms; ++term) item->amounts[term] += amounts[term];
}

CostRates CpuRates(int64_t processors) {
  return {5e-6, 1.0 / (25e9 * static_cast<double>(std::max<int64_t>(processors, 1))), 1.0 / 10e9};
}

CostRates GpuRates() { return {10e-6, 1.0 / 300e12, 1.0 / 50e9}; }

// One rate in a prediction.
struct CostModel::Part {
  const Rate* rate = nullptr;
  int key = 0;
  int term = 0;
  double share = 0;  // of the whole, from 0 to 1

  bool decides() const { return share >= 0.25; }
};

CostModel::CostModel(const CostRates& start) : start_{start.problem_s, start.flop_s, start.byte_s} {
  for (std::array<Rate, kCostTerms>& key : rates_) {
    for (int term = 0; term < kCostTerms; ++term) key[term].seconds = start_[term];
  }
}

double CostModel::Seconds(const Work& work) const {
  double seconds = 0;
  for (const Work::Item& item : work.items()) {
    for (int term = 0; term < kCostTerms; ++term) {
      seconds +=
          rates_[item.key][term].seconds.load(std::memory_order_relaxed) * item.amounts[term];
    }
  }
  return seconds;
}

CostModel::Parts CostModel::PartsOf(const Work& work) const {
  const double all = Seconds(work);
  Parts parts;
  for (const Work::Item& item : work.items()) {
    for (int term = 0; term < kCostTerms; ++term) {
      const Rate& rate = rates_[item.key][term];
      const double seconds = rate.seconds.load(std::memory_order_relaxed) * item.amounts[term];
      parts.push_back({&rate, item.key, term, seconds / all});
    }
  }
  return parts;
}

Duration CostModel::Predict(const Work& work) const {
  // A day is more than any deadline, and sums of days stay far from overflow.
  const double seconds = std::clamp(Seconds(work), ToSeconds(kLeast), 86400.0);
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

bool CostModel::IsHopeless(const Work& work, Duration predicted, Duration left,
                           TimePoint now) const {
  if (work.items().empty() || left >= predicted / 2) return false;
  const Parts parts = PartsOf(work);
  return std::all_of(parts.begin(), parts.end(), [&](const Part& part) {
    return !part.decides() ||
           (part.rate->batches.load(std::memory_order_relaxed) >= kSettled &&
            part.rate->confirmed_at.load(std::memory_order_relaxed) + kFresh > now);
  });
}

void CostModel::Observe(const Work& work, Duration actual, TimePoint now) {
  if (work.items().empty() || actual <= Duration::zero()) return;
  const double surprise = std::log(ToSeconds(actual) / Seconds(work));
  const Parts parts = PartsOf(work);
  double squares = 0;
  for (const Part& part : parts) squares += part.share * part.share;
  for (const Part& part : parts) {
    Rate& rate = rates_[part.key][part.term];
    const int before = rate.batches.load(std::memory_order_relaxed);
    const double step = before < kSettled
                            ? surprise / (before + 1)
                            : kGain * std::clamp(surprise, -kMostSurprise, kMostSurprise);
    const double moved =
        rate.seconds.load(std::memory_order_relaxed) * std::exp(step * part.share / squares);
    rate.seconds.store(
        std::clamp(moved, start_[part.term] / kMostChange, start_[part.term] * kMostChange),
        std::memory_order_relaxed);
    if (!part.decides()) continue;
    rate.confirmed_at.store(now, std::memory_order_relaxed);
    if (before < kSettled) rate.batches.store(before + 1, std::memory_order_relaxed);
  }
}

}  // namespace attnd::server
