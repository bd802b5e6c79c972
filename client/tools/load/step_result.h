// What a step of a load came to.
#ifndef ATTND_CLIENT_TOOLS_LOAD_STEP_RESULT_H_
#define ATTND_CLIENT_TOOLS_LOAD_STEP_RESULT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/tools/load/histogram.h"

namespace attnd::tools {

// Part of a step's counted time. A call belongs to the window in which it ended.
struct Window {
  double begin_s = 0;  // since the begin of the counted time
  double length_s = 0;
  int64_t answered = 0;
  int64_t failed = 0;  // and cancelled
  int64_t p50_us = 0;
  int64_t p99_us = 0;
  int64_t chosen_us = 0;  // of --percentile
};

// Sums over answers, in microseconds; `outside` is what is left of the latency: the wire, both ends
// of it, and the wait of a call that was sent late.
struct StageSums {
  int64_t queue_us = 0;
  int64_t upload_us = 0;
  int64_t run_us = 0;
  int64_t download_us = 0;
  int64_t outside_us = 0;
};

// Calls that were due in the warm-up count in warmup_sent alone. An answer that is wrong is an
// answer. sent == answered + failed() + cancelled + lost.
struct StepResult {
  int64_t warmup_sent = 0;
  int64_t sent = 0;
  int64_t answered = 0;
  std::map<absl::StatusCode, int64_t> failed_by_code;
  int64_t cancelled = 0;  // by the client
  int64_t lost = 0;       // never ended, although they were cancelled
  int64_t unsent = 0;     // were due, but the client was too late for them
  absl::Status first_error;
  int64_t retries = 0;
  int64_t payload_bytes = 0;  // of answered calls, both ways

  std::map<std::string, int64_t> answered_by_device;
  std::map<std::string, int64_t> answered_by_transport;
  std::map<int64_t, int64_t> answered_by_batch_size;
  StageSums stages;
  Histogram latency;   // of answered calls, from when they were due, retries included
  Histogram lateness;  // of all calls: when they were sent, less when they were due
  std::vector<Window> windows;

  absl::Duration elapsed;  // from the begin of the counted time to its end or the last call's
  absl::Duration sending;  // ... to the end of sending
  double client_cpus = 0;  // processors that this process kept busy, less those of the verifier
  bool stable = false;
  bool client_bound = false;

  int64_t verified = 0;
  int64_t verify_skipped = 0;  // chosen for it, but there was no room to keep them
  int64_t wrong = 0;
  double worst_error_over_bound = 0;
  double worst_rel_error = 0;
  double bound = 0;  // of that answer

  int64_t failed() const;
  double offered_per_s() const;  // what was due, sent or not
  double answered_per_s() const;
  double gb_per_s() const;
};

// Whether the last three windows' rates of answers, and their chosen percentiles, lie within
// `tolerance` of each one's mean; false for fewer windows, or one without answers.
bool IsStable(const std::vector<Window>& windows, double tolerance);

// Whether the figures tell more of the client than of the server: it came too late to send 1 % of
// the calls, or so late with 1 % that it shows in the latency, or used all of its processors.
bool IsClientBound(const StepResult& result, int64_t processors);

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_LOAD_STEP_RESULT_H_
