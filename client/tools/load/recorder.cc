#include "client/tools/load/recorder.h"

#include <algorithm>

namespace attnd::tools {
namespace {

// A server that makes up names, or batches, takes no memory here.
constexpr size_t kMostNames = 64;
constexpr int64_t kMostBatchSize = 4096;

int64_t MicrosecondsBetween(Recorder::TimePoint from, Recorder::TimePoint to) {
  return std::chrono::duration_cast<std::chrono::microseconds>(to - from).count();
}

double SecondsBetween(Recorder::TimePoint from, Recorder::TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

void CountName(const std::string& name, std::map<std::string, int64_t>* counts) {
  const bool known = counts->count(name) > 0 || counts->size() < kMostNames;
  ++(*counts)[known ? name : "other"];
}

}  // namespace

Recorder::Recorder(TimePoint begin, double percentile)
    : begin_(begin), percentile_(percentile), last_end_(begin), window_begin_(begin) {}

void Recorder::Sent(TimePoint due, TimePoint now) {
  MutexLock lock(mutex_);
  if (due < begin_) {
    ++result_.warmup_sent;
    return;
  }
  ++result_.sent;
  result_.lateness.Add(MicrosecondsBetween(due, now));
}

void Recorder::Unsent() {
  MutexLock lock(mutex_);
  ++result_.unsent;
}

void Recorder::Ended(TimePoint due, const absl::StatusOr<AttentionResult>& result, bool cancelled) {
  if (due < begin_) return;
  MutexLock lock(mutex_);
  last_end_ = std::chrono::steady_clock::now();
  if (result.ok()) {
    CountAnswer(*result, MicrosecondsBetween(due, last_end_));
    return;
  }
  ++window_.failed;
  if (cancelled && absl::IsCancelled(result.status())) {
    ++result_.cancelled;
    return;
  }
  ++result_.failed_by_code[result.status().code()];
  result_.first_error.Update(result.status());
}

void Recorder::CountAnswer(const AttentionResult& answer, int64_t latency_us) {
  ++result_.answered;
  ++window_.answered;
  result_.latency.Add(latency_us);
  window_latency_.Add(latency_us);
  result_.retries += answer.tries - 1;
  result_.payload_bytes += answer.sent_bytes + answer.received_bytes;
  CountName(answer.device, &result_.answered_by_device);
  CountName(TransportName(answer.transport), &result_.answered_by_transport);
  ++result_.answered_by_batch_size[std::clamp<int64_t>(answer.batch_size, 0, kMostBatchSize)];
  const ServerTiming& timing = answer.timing;
  StageSums& stages = result_.stages;
  stages.queue_us += timing.queue_us;
  stages.upload_us += timing.upload_us;
  stages.run_us += timing.run_us;
  stages.download_us += timing.download_us;
  stages.outside_us += std::max<int64_t>(
      0, latency_us - timing.queue_us - timing.upload_us - timing.run_us - timing.download_us);
}

std::vector<Window> Recorder::CloseWindow(TimePoint now) {
  MutexLock lock(mutex_);
  window_.begin_s = SecondsBetween(begin_, window_begin_);
  window_.length_s = SecondsBetween(window_begin_, now);
  window_.p50_us = window_latency_.PercentileUs(50);
  window_.p99_us = window_latency_.PercentileUs(99);
  window_.chosen_us = window_latency_.PercentileUs(percentile_);
  result_.windows.push_back(window_);
  window_ = Window();
  window_latency_ = Histogram();
  window_begin_ = now;
  return result_.windows;
}

StepResult Recorder::Result() const {
  MutexLock lock(mutex_);
  StepResult result = result_;
  result.lost = result.sent - result.answered - result.failed() - result.cancelled;
  result.elapsed = absl::FromChrono(last_end_ - begin_);
  return result;
}

}  // namespace attnd::tools
