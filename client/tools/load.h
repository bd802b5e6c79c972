// The load that attnload makes: a closed loop, each of `concurrency` callers sending its next call
// when its last one has ended.
#ifndef ATTND_CLIENT_TOOLS_LOAD_H_
#define ATTND_CLIENT_TOOLS_LOAD_H_

#include <atomic>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "client/client.h"
#include "client/tools/histogram.h"

namespace attnd::tools {

struct LoadOptions {
  int64_t concurrency = 4;
  absl::Duration duration = absl::Seconds(10);
  absl::Duration warmup = absl::Seconds(1);  // before that; its calls are not counted
  // One shape for all calls; Q, K, V are N(0,1) from `seed`.
  int64_t batch = 1;
  int64_t q_heads = 8;
  int64_t kv_heads = 8;
  int64_t q_len = 512;
  int64_t kv_len = 512;
  int64_t head_dim = 64;
  DType dtype = DType::kFloat16;
  Causal causal = Causal::kNone;
  Transport transport = Transport::kAuto;
  int64_t seed = 1;
  double verify_share = 0;  // of the answers, 0 to 1
  absl::optional<absl::Duration> timeout;
};

// sent == answered + failed; an answer that is wrong is an answer.
struct LoadResult {
  int64_t sent = 0;
  int64_t answered = 0;
  std::map<std::string, int64_t> answered_by_device;
  std::map<absl::StatusCode, int64_t> failed_by_code;
  absl::Status first_error;  // one of the failed calls', for a person
  int64_t retries = 0;
  int64_t payload_bytes = 0;  // of answered calls, both ways
  Histogram latency;          // of answered calls, retries included
  absl::Duration elapsed;     // from the first counted call to the end of the last
  int64_t verified = 0;
  int64_t wrong = 0;
  double worst_rel_error = 0;
  double bound = 0;

  int64_t failed() const;
  int64_t lost() const { return sent - answered - failed(); }
};

// Runs for warmup + duration, or until *stop. Calls in flight then are waited for and counted, and
// every answer chosen for it is verified before it returns: that can take longer than the load.
// INVALID_ARGUMENT if --verify_share is asked for a shape that is no problem.
absl::StatusOr<LoadResult> RunLoad(Client& client, const LoadOptions& options,
                                   const std::atomic<bool>& stop);

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_LOAD_H_
