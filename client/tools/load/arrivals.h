// When the calls of an open loop are due.
#ifndef ATTND_CLIENT_TOOLS_LOAD_ARRIVALS_H_
#define ATTND_CLIENT_TOOLS_LOAD_ARRIVALS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "client/tools/load/work.h"

namespace attnd::tools {

struct Arrival {
  absl::Duration at;  // since the begin of the warm-up
  size_t kind = 0;
};

// A sequence that ends. Not thread-safe.
class Arrivals {
 public:
  virtual ~Arrivals() = default;
  // In the order of their times; nullopt: no more.
  virtual absl::optional<Arrival> Next() = 0;
};

// Calls a second, above 0; from the one to the other in a straight line over the counted time.
struct RateShape {
  double from_per_s = 0;
  double to_per_s = 0;
  bool poisson = true;  // else at equal distances
  int64_t burst = 1;    // calls at a time; the rate stays, so that bursts are rarer than calls

  bool operator==(const RateShape&) const = default;
};

// From 0 to warmup + duration; in the warm-up at the first rate. Kinds by the work's weights. The
// same seed gives the same sequence. `work` must outlive it.
std::unique_ptr<Arrivals> ArrivalsAtRate(const RateShape& shape, absl::Duration warmup,
                                         absl::Duration duration, const Work& work, int64_t seed);

// As recorded, times divided by `speed`, up to `duration`. `trace` must outlive it.
std::unique_ptr<Arrivals> ArrivalsOfTrace(const std::vector<Arrival>& trace, double speed,
                                          absl::Duration duration);

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_LOAD_ARRIVALS_H_
