// Counters and histograms, in seconds and bytes, with labels from fixed sets only (at most 2,000
// series).
#ifndef ATTND_SERVER_METRICS_METRICS_H_
#define ATTND_SERVER_METRICS_METRICS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/job.h"
#include "server/metrics/inference_statistics.h"

namespace attnd::server {

// Names, as Prometheus sees them:
//
//   counters
//   attnd_calls_total{transport}                calls that came in: unary, stream, local (by the
//                                               side socket); of a ModelStreamInfer each request,
//                                               here and below
//   attnd_requests_received_total               calls whose message has begun to be read
//   attnd_requests_finished_total{code,stage}   every call ends in exactly one of these
//   attnd_received_bytes_total{transport}       payload: unary, stream, region (read in place)
//   attnd_sent_bytes_total{transport}           payload: unary, stream, region (written in place)
//   attnd_retry_pushback_total                  refusals that told the caller when to come again
//   attnd_refusals_total{reason}                by the queue: RefusalName of each Refusal
//   attnd_tenant_device_seconds_total{tenant}   predicted, of what was handed out; the names are
//                                               those of the tenants file
//   attnd_region_refusals_total{reason}         of regions and of ranges in them: connection, file,
//                                               cuda, limit, handle, range, leases, broken
//
//   histograms
//   attnd_stage_seconds{stage,priority}         queue, upload, run, download, total;
//                                               high (1 to 3), default (4 to 6), low (7 to 9)
//   attnd_kernel_run_seconds{kernel}            run time of batches by kernel; at most
//                                               kMaxKernelNames names, then "other"
//   attnd_batch_requests                        requests a batch
//   attnd_batch_fill_ratio                      how near a batch came to its nearest limit
//   attnd_predicted_over_actual_ratio           of the device time of batches
//
//   gauges, read when scraped
//   attnd_queue_requests, attnd_queue_bytes, attnd_queue_seconds (predicted device time),
//   attnd_receive_budget_bytes, attnd_receive_used_bytes, attnd_receive_waiting_requests,
//   attnd_pool_used_bytes, attnd_pool_kept_bytes, attnd_pinned_held_bytes, attnd_device_used_bytes,
//   attnd_device_held_bytes, attnd_serving, attnd_region_connections, attnd_call_connections,
//   attnd_regions,
//   attnd_region_bytes, attnd_region_leases, attnd_cuda_regions, attnd_cuda_region_bytes (of the
//   two before, those on GPUs) attnd_build_info{version,backend} 1
//
// Why a scheduler took a request not in. kTooLarge: for good. kHopeless: its deadline cannot be met
// even by an idle device.
enum class Refusal {
  kQueueRequests,
  kQueueBytes,
  kQueueTime,
  kTenantRequests,
  kTenantBytes,
  kTenantTime,
  kTooLarge,
  kHopeless,
  kExpired,
  kDraining,
};
inline constexpr int kRefusals = 10;

// "queue_requests": a metric label.
const char* RefusalName(Refusal refusal);

// Thread-safe.
class Metrics {
 public:
  // A backend has 45 kernels (3 dtypes, 5 head_dim classes, 3 families) and a server two backends
  // at most. Each costs 12 series, so that these are 1,164 of the 2,000; the stages are 375.
  static constexpr int64_t kMaxKernelNames = 96;

  Metrics();
  ~Metrics();

  // `transport`, here and below: "unary", "stream" or "local".
  void CountCall(const char* transport);
  void CountReceived(const char* transport, int64_t payload_bytes);
  void CountFinished(absl::StatusCode code, Stage stage);
  void CountSent(const char* transport, int64_t payload_bytes);
  // Of one call, in memory of its caller's: used where they lay, or copied by name.
  void CountRegionBytes(int64_t read_bytes, int64_t written_bytes);
  void CountPushback();
  void CountRefusal(Refusal refusal);
  // `priority` as Request has it.
  void ObserveTiming(const Timing& timing, int priority);
  // A batch that runs. `fill` is of its nearest limit, from 0; over 1 for a request that is larger
  // than a batch.
  void ObserveBatch(int64_t requests, double fill);
  // Device time of one that has run to its end.
  void ObservePrediction(double predicted_s, double actual_s);
  // A name that is not of the form [a-z0-9_]{1,64} counts as "other".
  void ObserveKernel(absl::string_view kernel, double run_seconds);
  // The latest call counts.
  void SetBuildInfo(absl::string_view version, absl::string_view backend);

  // A value that is asked for at each scrape. `name` is one of the gauges above; added again, it
  // replaces the first. The function is called with a lock of this class held, so it must not call
  // back, and must be callable until RemoveGauges() returns.
  void AddGauge(absl::string_view name, absl::string_view help, std::function<double()> value);
  // Counters that somebody else keeps, one for each value of `label`; the same of the function.
  using Counts = std::vector<std::pair<std::string, double>>;
  void AddCounters(absl::string_view name, absl::string_view help, absl::string_view label,
                   std::function<Counts()> values);
  // Both.
  void RemoveGauges();

  // In Prometheus' text format.
  std::string Serialize();

  // Totals of all requests.
  InferenceStatistics& inferences() { return inferences_; }

  // For tests and drain: totals of the two counters above.
  int64_t received() const;
  int64_t finished() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
  InferenceStatistics inferences_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_METRICS_METRICS_H_
