// Counters and histograms, in seconds and bytes, with labels from fixed sets only (at most 2,000
// series).
#ifndef ATTND_SERVER_METRICS_METRICS_H_
#define ATTND_SERVER_METRICS_METRICS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/job.h"

namespace attnd::server {

// Thread-safe. Names, as Prometheus sees them:
//   attnd_requests_received_total                          calls whose message has begun to be read
//   attnd_requests_finished_total{code,stage}              every call ends in exactly one of these
//   attnd_stage_seconds{stage}                             queue, upload, run, download, total
//   (histograms) attnd_kernel_run_seconds{kernel}                       run time of batches by
//   kernel (at most 256 names, then "other") attnd_batch_requests requests a batch (histogram)
//   attnd_received_bytes_total, attnd_sent_bytes_total     payload
//   attnd_retry_pushback_total                             refusals that told the caller when to
//   come again gauges, read when scraped: attnd_queue_requests, attnd_queue_bytes,
//   attnd_receive_budget_bytes, attnd_receive_used_bytes, attnd_receive_waiting_requests,
//   attnd_pool_used_bytes, attnd_pool_kept_bytes, attnd_serving attnd_build_info{version,backend} 1
class Metrics {
 public:
  Metrics();
  ~Metrics();

  void CountReceived(int64_t payload_bytes);
  void CountFinished(absl::StatusCode code, Stage stage);
  void CountSent(int64_t payload_bytes);
  void CountPushback();
  void ObserveTiming(const Timing& timing);
  void ObserveBatch(int64_t requests);
  void ObserveKernel(absl::string_view kernel, double run_seconds);
  void SetBuildInfo(absl::string_view version, absl::string_view backend);

  // A value that is asked for at each scrape. `name` is one of the gauges above. The function must
  // be callable until RemoveGauges().
  void AddGauge(absl::string_view name, absl::string_view help, std::function<double()> value);
  void RemoveGauges();

  // In Prometheus' text format.
  std::string Serialize();

  // For tests and drain: totals of the two counters above.
  int64_t received() const;
  int64_t finished() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_METRICS_METRICS_H_
