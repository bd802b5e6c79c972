// The highest rate that keeps a promise, by bisection.
#ifndef ATTND_CLIENT_TOOLS_LOAD_SEARCH_H_
#define ATTND_CLIENT_TOOLS_LOAD_SEARCH_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "client/tools/load/step_result.h"

namespace attnd::tools {

// "p99=20ms": 99 % of the calls are answered within 20 ms of when they were due.
struct Slo {
  double percent = 99;
  absl::Duration limit;
};

// p50, p90, p99, p99.9 or any other above 0 and below 100; a time with its unit. INVALID_ARGUMENT
// naming the text otherwise.
absl::StatusOr<Slo> ParseSlo(const std::string& text);

// Of all calls, not of those answered: what failed, was lost or never sent has not kept it.
bool Holds(const Slo& slo, const StepResult& result);

// Which rate to try next: from `first` doubled while it holds, halved while it does not, then the
// geometric mean of the highest that held and the lowest that did not, until these are within 5 %,
// or after kMostProbes. Plain data, no clock.
class RateSearch {
 public:
  static constexpr int kMostProbes = 16;

  explicit RateSearch(double first_per_s) : next_(first_per_s) {}

  // nullopt: it is over.
  absl::optional<double> next_per_s() const { return next_; }
  // Whether the next rate held.
  void Tell(bool holds);

  // nullopt: none has held.
  absl::optional<double> highest_per_s() const { return held_; }
  // nullopt: all have held, so that the highest may be higher.
  absl::optional<double> lowest_broken_per_s() const { return broken_; }

 private:
  absl::optional<double> next_;
  absl::optional<double> held_;
  absl::optional<double> broken_;
  int probes_ = 0;
};

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_LOAD_SEARCH_H_
