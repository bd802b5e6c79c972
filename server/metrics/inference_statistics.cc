#include "server/metrics/inference_statistics.h"

#include <chrono>

namespace attnd::server {
namespace {

void Add(const Timing& timing, InferenceStatistics::Times& to) {
  ++to.requests;
  to.queue_us += timing.queue_us;
  to.upload_us += timing.upload_us;
  to.run_us += timing.run_us;
  to.download_us += timing.download_us;
  to.total_us += timing.total_us;
}

int64_t WallMs() {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(since_1970).count();
}

}  // namespace

int64_t InferenceStatistics::Totals::batches() const {
  int64_t batches = 0, requests = 0;
  for (const auto& [size, times] : by_batch_size) {
    batches += times.batches(size);
    requests += times.requests;
  }
  return batches + (answered.requests - requests);
}

void InferenceStatistics::CountAnswered(const Timing& timing, int64_t batch_size) {
  const int64_t now_ms = WallMs();
  MutexLock lock(mutex_);
  totals_.last_answer_ms = now_ms;
  Add(timing, totals_.answered);
  const auto found = totals_.by_batch_size.find(batch_size);
  if (found != totals_.by_batch_size.end()) {
    Add(timing, found->second);
  } else if (totals_.by_batch_size.size() < kMaxBatchSizes) {
    Add(timing, totals_.by_batch_size[batch_size]);
  }
}

void InferenceStatistics::CountFailed(Duration after) {
  MutexLock lock(mutex_);
  ++totals_.failed;
  totals_.failed_us += ToMicroseconds(after);
}

InferenceStatistics::Totals InferenceStatistics::totals() const {
  MutexLock lock(mutex_);
  return totals_;
}

}  // namespace attnd::server
