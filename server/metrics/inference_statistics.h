// What became of requests since the start, in totals: what the Open Inference Protocol asks a
// server for.
#ifndef ATTND_SERVER_METRICS_INFERENCE_STATISTICS_H_
#define ATTND_SERVER_METRICS_INFERENCE_STATISTICS_H_

#include <cstddef>
#include <cstdint>
#include <map>

#include "kernels/sync.h"
#include "server/clock.h"
#include "server/request.h"

namespace attnd::server {

// Beside Metrics, whose histograms hold the same times, because a histogram cannot be read back.
// Thread-safe.
class InferenceStatistics {
 public:
  // Sizes of batches that are told apart; a batch of yet another size counts in the totals alone.
  static constexpr size_t kMaxBatchSizes = 1024;

  // Of answered requests. Times are in sums; upload, run and download are those of whole batches.
  struct Times {
    int64_t requests = 0;
    int64_t queue_us = 0;
    int64_t upload_us = 0;
    int64_t run_us = 0;
    int64_t download_us = 0;
    int64_t total_us = 0;

    // Batches of this size that all of these ran in; one of which a request failed is one.
    int64_t batches(int64_t size) const { return (requests + size - 1) / size; }
  };
  struct Totals {
    Times answered;
    int64_t failed = 0;
    int64_t failed_us = 0;
    // Wall clock, in milliseconds since 1970; 0: none yet.
    int64_t last_answer_ms = 0;
    // By the number of requests that ran together.
    std::map<int64_t, Times> by_batch_size;

    // Batches of every size. Exact where all of a batch's requests were answered.
    int64_t batches() const;
  };

  // `timing` with total_us; `batch_size` > 0.
  void CountAnswered(const Timing& timing, int64_t batch_size);
  // A call that ended with an error this long after its headers.
  void CountFailed(Duration after);

  Totals totals() const;

 private:
  mutable Mutex mutex_;
  Totals totals_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_METRICS_INFERENCE_STATISTICS_H_
