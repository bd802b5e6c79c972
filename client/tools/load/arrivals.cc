#include "client/tools/load/arrivals.h"

#include <cmath>
#include <random>

namespace attnd::tools {
namespace {

// Arrivals are a process of rate 1 whose time is then stretched: the number of calls due by time t
// is the integral of the rate, and `TimeOf` is its inverse.
class RateArrivals : public Arrivals {
 public:
  RateArrivals(const RateShape& shape, absl::Duration warmup, absl::Duration duration,
               const Work& work, int64_t seed)
      : shape_(shape),
        warmup_s_(absl::ToDoubleSeconds(warmup)),
        duration_s_(absl::ToDoubleSeconds(duration)),
        work_(work),
        random_(static_cast<uint64_t>(seed)) {}

  absl::optional<Arrival> Next() override {
    if (left_of_burst_ == 0) {
      const double burst = static_cast<double>(shape_.burst);
      due_ += shape_.poisson ? burst * gap_(random_) : burst;
      left_of_burst_ = shape_.burst;
    }
    --left_of_burst_;
    const absl::optional<double> at_s = TimeOf(due_);
    if (!at_s || *at_s >= warmup_s_ + duration_s_) return absl::nullopt;
    return Arrival{absl::Seconds(*at_s), work_.Pick(random_)};
  }

 private:
  // nullopt: never.
  absl::optional<double> TimeOf(double due) const {
    const double from = shape_.from_per_s;
    const double in_warmup = warmup_s_ * from;
    if (due <= in_warmup) return due / from;
    const double counted = due - in_warmup;
    // counted = from * t + slope / 2 * t^2, solved so that a slope of 0 is no special case.
    const double slope = (shape_.to_per_s - from) / duration_s_;
    const double root = from * from + 2 * slope * counted;
    if (root < 0) return absl::nullopt;
    return warmup_s_ + 2 * counted / (from + std::sqrt(root));
  }

  const RateShape shape_;
  const double warmup_s_;
  const double duration_s_;
  const Work& work_;
  std::mt19937_64 random_;
  std::exponential_distribution<double> gap_{1.0};
  double due_ = 0;
  int64_t left_of_burst_ = 0;
};

class TraceArrivals : public Arrivals {
 public:
  TraceArrivals(const std::vector<Arrival>& trace, double speed, absl::Duration duration)
      : trace_(trace), speed_(speed), duration_(duration) {}

  absl::optional<Arrival> Next() override {
    if (next_ >= trace_.size()) return absl::nullopt;
    Arrival arrival = trace_[next_++];
    arrival.at /= speed_;
    if (arrival.at >= duration_) return absl::nullopt;
    return arrival;
  }

 private:
  const std::vector<Arrival>& trace_;
  const double speed_;
  const absl::Duration duration_;
  size_t next_ = 0;
};

}  // namespace

std::unique_ptr<Arrivals> ArrivalsAtRate(const RateShape& shape, absl::Duration warmup,
                                         absl::Duration duration, const Work& work, int64_t seed) {
  return std::make_unique<RateArrivals>(shape, warmup, duration, work, seed);
}

std::unique_ptr<Arrivals> ArrivalsOfTrace(const std::vector<Arrival>& trace, double speed,
                                          absl::Duration duration) {
  return std::make_unique<TraceArrivals>(trace, speed, duration);
}

}  // namespace attnd::tools
