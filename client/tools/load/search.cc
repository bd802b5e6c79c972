#include "client/tools/load/search.h"

#include <cmath>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace attnd::tools {

absl::StatusOr<Slo> ParseSlo(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '=');
  Slo slo;
  const bool good = parts.size() == 2 && absl::StartsWith(parts[0], "p") &&
                    absl::SimpleAtod(parts[0].substr(1), &slo.percent) && slo.percent > 0 &&
                    slo.percent < 100 && absl::ParseDuration(parts[1], &slo.limit) &&
                    slo.limit > absl::ZeroDuration() && slo.limit < absl::InfiniteDuration();
  if (good) return slo;
  return absl::InvalidArgumentError(
      absl::StrCat("--slo is \"", text, "\", must be a percentile and a time, such as p99=20ms"));
}

bool Holds(const Slo& slo, const StepResult& result) {
  const int64_t due = result.sent + result.unsent;
  if (result.answered == 0) return false;
  // The percentile of the answers that is the wanted one of all.
  const double percent =
      slo.percent * static_cast<double>(due) / static_cast<double>(result.answered);
  return percent <= 100 && absl::Microseconds(result.latency.PercentileUs(percent)) <= slo.limit;
}

void RateSearch::Tell(bool holds) {
  constexpr double kCloseEnough = 1.05;
  (holds ? held_ : broken_) = next_;
  ++probes_;
  if (probes_ >= kMostProbes || (held_ && broken_ && *broken_ <= kCloseEnough * *held_)) {
    next_ = absl::nullopt;
  } else if (held_ && broken_) {
    next_ = std::sqrt(*held_ * *broken_);
  } else {
    next_ = *next_ * (holds ? 2 : 0.5);
  }
}

}  // namespace attnd::tools
