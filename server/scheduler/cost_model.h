// How much of a device's time a request will take, judged by its shape and by what such requests
// took lately.
#ifndef ATTND_SERVER_SCHEDULER_COST_MODEL_H_
#define ATTND_SERVER_SCHEDULER_COST_MODEL_H_

#include <array>
#include <atomic>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "kernels/attention.h"
#include "server/clock.h"
#include "server/request.h"

namespace attnd::server {

// The terms of a cost, in this order: each problem, each FLOP, each byte of Q, K, V and O.
inline constexpr int kCostTerms = 3;
using CostTerms = std::array<double, kCostTerms>;

// What some problems ask of a device, summed by launch key. A value, and cheap to make: a
// microsecond for ten problems.
class Work {
 public:
  // Of one launch key.
  struct Item {
    int key = 0;
    CostTerms amounts{};
  };

  Work() = default;
  explicit Work(const Request& request) { Add(request); }

  void Clear() { items_.clear(); }
  void Add(const Request& request);
  void Add(const kernels::AttentionProblem& problem);

  const absl::InlinedVector<Item, 2>& items() const { return items_; }

 private:
  absl::InlinedVector<Item, 2> items_;
};

// Seconds per unit of each term.
struct CostRates {
  double problem_s = 0;
  double flop_s = 0;
  double byte_s = 0;
};

// What the first requests are judged by. CPU: a few microseconds to plan a problem, one fp32 FMA of
// 256 bits a cycle and processor at half of its peak, the memory of one socket. GPU: a launch, what
// the kernels reach, PCIe. Each is right within kMostChange for whatever there is of its kind.
CostRates CpuRates(int64_t processors);
CostRates GpuRates();

// Predicts the device time of a request: the sum over its problems of
//
//   rate[key][problem] + rate[key][flop] * FLOPs + rate[key][byte] * bytes
//
// with the rates of each launch key (dtype, head_dim class, family, role: kKeys of them) fitted to
// what batches took. The fit is a normalized least-mean-squares step on the logarithm of actual
// over predicted: each rate moves by its share of the prediction, so that small problems correct
// the first term and large ones the others, whatever their scales. A rate is settled once kSettled
// batches have hung on it for a quarter or more; from then on its steps are bounded, so that one
// odd batch moves a prediction by about a tenth at most. Rates stay within kMostChange of their
// start.
//
// Predict and IsHopeless: any thread, without a lock. Observe: one thread at a time.
class CostModel {
 public:
  static constexpr int kKeys = 3 * 5 * 3 * 2;
  static constexpr double kMostChange = 100;
  static constexpr int kSettled = 8;

  explicit CostModel(const CostRates& start);

  // At least kLeast, so that nothing is free.
  static constexpr microseconds kLeast{1};
  Duration Predict(const Work& work) const;

  // Whether a device that has nothing else to do could not end the work within `left`, as far as is
  // known: half of the prediction, which is Predict's, is longer. False where it hangs on rates
  // that are not settled, or that nothing has confirmed within kFresh: what is refused never runs,
  // and so never shows that it would have been faster by now.
  bool IsHopeless(const Work& work, Duration predicted, Duration left, TimePoint now) const;
  static constexpr std::chrono::seconds kFresh{10};

  // The work was done together and took so much of the device's time.
  void Observe(const Work& work, Duration actual, TimePoint now);

 private:
  struct Rate {
    std::atomic<double> seconds{0};
    std::atomic<int> batches{0};  // that hung on it; kSettled is as good as more
    std::atomic<TimePoint> confirmed_at{TimePoint::min()};
  };
  struct Part;
  using Parts = absl::InlinedVector<Part, 2 * kCostTerms>;

  // The sum, and what it is made of.
  double Seconds(const Work& work) const;
  Parts PartsOf(const Work& work) const;

  const CostTerms start_;
  std::array<std::array<Rate, kCostTerms>, kKeys> rates_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SCHEDULER_COST_MODEL_H_
