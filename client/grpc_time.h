// Times on gRPC's monotonic clock: a wall clock that is set does not move them.
#ifndef ATTND_CLIENT_GRPC_TIME_H_
#define ATTND_CLIENT_GRPC_TIME_H_

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"
#include "grpc/support/time.h"

namespace attnd::client {

// So long from now; now, if that is negative.
inline gpr_timespec FromNow(absl::Duration left) {
  const int64_t left_us = std::max<int64_t>(absl::ToInt64Microseconds(left), 0);
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros(left_us, GPR_TIMESPAN));
}

// time_point::max() is for ever.
inline gpr_timespec ToGrpc(std::chrono::steady_clock::time_point until) {
  using Clock = std::chrono::steady_clock;
  if (until == Clock::time_point::max()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  return FromNow(absl::FromChrono(until - Clock::now()));
}

}  // namespace attnd::client

#endif  // ATTND_CLIENT_GRPC_TIME_H_
