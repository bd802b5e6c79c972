#include "server/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "kernels/sync.h"

namespace attnd::server {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

// 1-2-5 from the time of a small problem on a GPU to that of a long one on a CPU.
const Buckets& StageBuckets() {
  static const Buckets buckets = {10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3,
                                  5e-3,  10e-3, 20e-3, 50e-3,  0.1,    0.2,    0.5,  1,
                                  2,     5,     10,    20,     50,     100};
  return buckets;
}

// Coarser (half decades), as there is a set of these for each kernel.
const Buckets& KernelBuckets() {
  static const Buckets buckets = {10e-6, 30e-6, 100e-6, 300e-6, 1e-3, 3e-3, 10e-3,
                                  30e-3, 0.1,   0.3,    1,      3,    10};
  return buckets;
}

const Buckets& BatchBuckets() {
  static const Buckets buckets = {1, 2, 4, 8, 16, 32, 64, 128, 256};
  return buckets;
}

std::string CodeLabel(absl::StatusCode code) {
  // Codes that are no code of absl's are one label, not one each.
  const std::string name = absl::StatusCodeToString(code);
  return name.empty() ? "UNKNOWN" : name;
}

bool IsKernelName(absl::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), allowed);
}

template <typename Builder>
auto& MakeFamily(Builder builder, prometheus::Registry& registry, const char* name,
                 const char* help) {
  return builder.Name(name).Help(help).Register(registry);
}

prometheus::MetricFamily OneGauge(const std::string& name, const std::string& help, double value,
                                  std::vector<prometheus::ClientMetric::Label> labels) {
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  metric.gauge.value = value;
  return {name, help, prometheus::MetricType::Gauge, {metric}};
}

prometheus::MetricFamily LabelledCounters(const std::string& name, const std::string& help,
                                          const std::string& label, const Metrics::Counts& values) {
  prometheus::MetricFamily family{name, help, prometheus::MetricType::Counter, {}};
  for (const auto& [value, count] : values) {
    prometheus::ClientMetric metric;
    metric.label = {{label, value}};
    metric.counter.value = static_cast<double>(count);
    family.metric.push_back(std::move(metric));
  }
  return family;
}

}  // namespace

class Metrics::Impl {
 public:
  Impl()
      : received_(
            Counter("attnd_requests_received_total", "Calls whose message has begun to be read.")),
        received_bytes_(MakeFamily(prometheus::BuildCounter(), registry_,
                                   "attnd_received_bytes_total",
                                   "Payload bytes received, by transport.")),
        sent_bytes_(MakeFamily(prometheus::BuildCounter(), registry_, "attnd_sent_bytes_total",
                               "Payload bytes sent, by transport.")),
        pushbacks_(Counter("attnd_retry_pushback_total",
                           "Refusals that told the caller when to come again.")),
        calls_(MakeFamily(prometheus::BuildCounter(), registry_, "attnd_calls_total",
                          "Calls that came in, by transport.")),
        finished_(MakeFamily(prometheus::BuildCounter(), registry_, "attnd_requests_finished_total",
                             "Calls that ended, by status code and the stage they ended in.")),
        stages_(MakeFamily(prometheus::BuildHistogram(), registry_, "attnd_stage_seconds",
                           "Time of answered calls by stage.")),
        kernels_(MakeFamily(prometheus::BuildHistogram(), registry_, "attnd_kernel_run_seconds",
                            "Run time of batches by kernel.")),
        queue_(StageHistogram("queue")),
        upload_(StageHistogram("upload")),
        run_(StageHistogram("run")),
        download_(StageHistogram("download")),
        total_(StageHistogram("total")),
        batch_requests_(MakeFamily(prometheus::BuildHistogram(), registry_, "attnd_batch_requests",
                                   "Requests that ran together.")
                            .Add({}, BatchBuckets())) {}

  void CountCall(const char* transport) { calls_.Add({{"transport", transport}}).Increment(); }

  void CountReceived(const char* transport, int64_t payload_bytes) {
    received_calls_.fetch_add(1, std::memory_order_relaxed);
    received_.Increment();
    CountBytes(received_bytes_, transport, payload_bytes);
  }

  void CountRegionBytes(int64_t read_bytes, int64_t written_bytes) {
    CountBytes(received_bytes_, "region", read_bytes);
    CountBytes(sent_bytes_, "region", written_bytes);
  }

  void CountFinished(absl::StatusCode code, Stage stage) {
    finished_calls_.fetch_add(1, std::memory_order_relaxed);
    finished_.Add({{"code", CodeLabel(code)}, {"stage", StageName(stage)}}).Increment();
  }

  void CountSent(const char* transport, int64_t payload_bytes) {
    CountBytes(sent_bytes_, transport, payload_bytes);
  }

  void CountPushback() { pushbacks_.Increment(); }

  void ObserveTiming(const Timing& timing) {
    queue_.Observe(static_cast<double>(timing.queue_us) * 1e-6);
    upload_.Observe(static_cast<double>(timing.upload_us) * 1e-6);
    run_.Observe(static_cast<double>(timing.run_us) * 1e-6);
    download_.Observe(static_cast<double>(timing.download_us) * 1e-6);
    total_.Observe(static_cast<double>(timing.total_us) * 1e-6);
  }

  void ObserveBatch(int64_t requests) { batch_requests_.Observe(static_cast<double>(requests)); }

  void ObserveKernel(absl::string_view kernel, double run_seconds) {
    kernels_.Add({{"kernel", KernelLabel(kernel)}}, KernelBuckets()).Observe(run_seconds);
  }

  void SetBuildInfo(absl::string_view version, absl::string_view backend) {
    MutexLock lock(mutex_);
    version_ = std::string(version);
    backend_ = std::string(backend);
  }

  void AddGauge(absl::string_view name, absl::string_view help, std::function<double()> value) {
    MutexLock lock(mutex_);
    gauges_[std::string(name)] = {std::string(help), std::move(value)};
  }

  void AddCounters(absl::string_view name, absl::string_view help, absl::string_view label,
                   std::function<Counts()> values) {
    MutexLock lock(mutex_);
    counters_[std::string(name)] = {std::string(help), std::string(label), std::move(values)};
  }

  void RemoveGauges() {
    MutexLock lock(mutex_);
    gauges_.clear();
    counters_.clear();
  }

  std::string Serialize() {
    std::vector<prometheus::MetricFamily> families = registry_.Collect();
    {
      MutexLock lock(mutex_);
      for (const auto& [name, gauge] : gauges_) {
        families.push_back(OneGauge(name, gauge.help, gauge.value(), {}));
      }
      for (const auto& [name, counters] : counters_) {
        families.push_back(
            LabelledCounters(name, counters.help, counters.label, counters.values()));
      }
      if (!version_.empty()) {
        families.push_back(OneGauge("attnd_build_info", "The build that serves; always 1.", 1,
                                    {{"version", version_}, {"backend", backend_}}));
      }
    }
    return prometheus::TextSerializer().Serialize(families);
  }

  int64_t received() const { return received_calls_.load(std::memory_order_relaxed); }
  int64_t finished() const { return finished_calls_.load(std::memory_order_relaxed); }

 private:
  struct Gauge {
    std::string help;
    std::function<double()> value;
  };
  struct Counters {
    std::string help;
    std::string label;
    std::function<Counts()> values;
  };

  static void CountBytes(prometheus::Family<prometheus::Counter>& family, const char* transport,
                         int64_t bytes) {
    family.Add({{"transport", transport}}).Increment(static_cast<double>(bytes));
  }

  prometheus::Counter& Counter(const char* name, const char* help) {
    return MakeFamily(prometheus::BuildCounter(), registry_, name, help).Add({});
  }

  prometheus::Histogram& StageHistogram(const char* stage) {
    return stages_.Add({{"stage", stage}}, StageBuckets());
  }

  std::string KernelLabel(absl::string_view kernel) {
    if (!IsKernelName(kernel)) return "other";
    std::string name(kernel);
    MutexLock lock(mutex_);
    if (kernel_names_.count(name) != 0) return name;
    if (static_cast<int64_t>(kernel_names_.size()) >= kMaxKernelNames) return "other";
    kernel_names_.insert(name);
    return name;
  }

  prometheus::Registry registry_;
  prometheus::Counter& received_;
  prometheus::Family<prometheus::Counter>& received_bytes_;
  prometheus::Family<prometheus::Counter>& sent_bytes_;
  prometheus::Counter& pushbacks_;
  prometheus::Family<prometheus::Counter>& calls_;
  prometheus::Family<prometheus::Counter>& finished_;
  prometheus::Family<prometheus::Histogram>& stages_;
  prometheus::Family<prometheus::Histogram>& kernels_;
  prometheus::Histogram& queue_;
  prometheus::Histogram& upload_;
  prometheus::Histogram& run_;
  prometheus::Histogram& download_;
  prometheus::Histogram& total_;
  prometheus::Histogram& batch_requests_;
  std::atomic<int64_t> received_calls_{0};
  std::atomic<int64_t> finished_calls_{0};

  Mutex mutex_;
  std::map<std::string, Gauge> gauges_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Counters> counters_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> kernel_names_ ABSL_GUARDED_BY(mutex_);
  std::string version_ ABSL_GUARDED_BY(mutex_);
  std::string backend_ ABSL_GUARDED_BY(mutex_);
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

void Metrics::CountCall(const char* transport) { impl_->CountCall(transport); }
void Metrics::CountReceived(const char* transport, int64_t payload_bytes) {
  impl_->CountReceived(transport, payload_bytes);
}
void Metrics::CountRegionBytes(int64_t read_bytes, int64_t written_bytes) {
  impl_->CountRegionBytes(read_bytes, written_bytes);
}
void Metrics::CountFinished(absl::StatusCode code, Stage stage) {
  impl_->CountFinished(code, stage);
}
void Metrics::CountSent(const char* transport, int64_t payload_bytes) {
  impl_->CountSent(transport, payload_bytes);
}
void Metrics::CountPushback() { impl_->CountPushback(); }
void Metrics::ObserveTiming(const Timing& timing) { impl_->ObserveTiming(timing); }
void Metrics::ObserveBatch(int64_t requests) { impl_->ObserveBatch(requests); }
void Metrics::ObserveKernel(absl::string_view kernel, double run_seconds) {
  impl_->ObserveKernel(kernel, run_seconds);
}
void Metrics::SetBuildInfo(absl::string_view version, absl::string_view backend) {
  impl_->SetBuildInfo(version, backend);
}
void Metrics::AddGauge(absl::string_view name, absl::string_view help,
                       std::function<double()> value) {
  impl_->AddGauge(name, help, std::move(value));
}
void Metrics::AddCounters(absl::string_view name, absl::string_view help, absl::string_view label,
                          std::function<Counts()> values) {
  impl_->AddCounters(name, help, label, std::move(values));
}
void Metrics::RemoveGauges() { impl_->RemoveGauges(); }
std::string Metrics::Serialize() { return impl_->Serialize(); }
int64_t Metrics::received() const { return impl_->received(); }
int64_t Metrics::finished() const { return impl_->finished(); }

}  // namespace attnd::server
