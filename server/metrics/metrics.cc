#include "server/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "kernels/sync.h"
#include "server/metrics/buckets.h"
#include "server/metrics/counter_cells.h"

namespace attnd::server {
namespace {

constexpr size_t kCodes = 17;
constexpr size_t kStages = static_cast<size_t>(Stage::kDone) + 1;
constexpr const char* kTransports[] = {"unary", "stream", "local", "region"};
constexpr const char* kPriorities[] = {"high", "default", "low"};

size_t PriorityClass(int priority) {
  return priority <= 0 ? 1 : static_cast<size_t>(std::clamp((priority - 1) / 3, 0, 2));
}

size_t TransportIndex(absl::string_view transport) {
  return std::find(std::begin(kTransports), std::end(kTransports) - 1, transport) -
         std::begin(kTransports);
}

std::string CodeLabel(absl::StatusCode code) {
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
    metric.counter.value = count;
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
        received_bytes_(
            NewCounters("attnd_received_bytes_total", "Payload bytes received, by transport.")),
        sent_bytes_(NewCounters("attnd_sent_bytes_total", "Payload bytes sent, by transport.")),
        pushbacks_(Counter("attnd_retry_pushback_total",
                           "Refusals that told the caller when to come again.")),
        refusals_(
            NewCounters("attnd_refusals_total", "Requests that the queue refused, by reason.")),
        calls_(NewCounters("attnd_calls_total", "Calls that came in, by transport.")),
        finished_(NewCounters("attnd_requests_finished_total",
                              "Calls that ended, by status code and the stage they ended in.")),
        stages_(Histograms("attnd_stage_seconds",
                           "Time of answered calls by stage and class of priority.")),
        kernels_(Histograms("attnd_kernel_run_seconds", "Run time of batches by kernel.")),
        batch_requests_(Histograms("attnd_batch_requests", "Requests that ran together.")
                            .Add({}, kBatchBuckets)),
        batch_fill_(Histograms("attnd_batch_fill_ratio", "How near batches came to a limit.")
                        .Add({}, kFillBuckets)),
        predicted_(Histograms("attnd_predicted_over_actual_ratio",
                              "Predicted over actual device time of batches.")
                       .Add({}, kRatioBuckets)) {
    for (const char* priority : kPriorities) {
      StageSet& set = stage_sets_.emplace_back();
      size_t stage = 0;
      for (const char* name : {"queue", "upload", "run", "download", "total"}) {
        set[stage++] = &stages_.Add({{"stage", name}, {"priority", priority}}, kStageBuckets);
      }
    }
  }

  void CountCall(const char* transport) { CountByTransport(calls_, transport, 1); }

  void CountReceived(const char* transport, int64_t payload_bytes) {
    received_calls_.fetch_add(1, std::memory_order_relaxed);
    received_.Increment();
    CountByTransport(received_bytes_, transport, payload_bytes);
  }

  void CountRegionBytes(int64_t read_bytes, int64_t written_bytes) {
    CountByTransport(received_bytes_, "region", read_bytes);
    CountByTransport(sent_bytes_, "region", written_bytes);
  }

  void CountFinished(absl::StatusCode code, Stage stage) {
    finished_calls_.fetch_add(1, std::memory_order_relaxed);
    // Codes that are no code of absl's are one, not one each.
    if (static_cast<size_t>(code) >= kCodes) code = absl::StatusCode::kUnknown;
    const size_t cell = static_cast<size_t>(code) * kStages + static_cast<size_t>(stage);
    finished_.Add(cell, 1, [&] {
      return prometheus::Labels{{"code", CodeLabel(code)}, {"stage", StageName(stage)}};
    });
  }

  void CountSent(const char* transport, int64_t payload_bytes) {
    CountByTransport(sent_bytes_, transport, payload_bytes);
  }

  void CountPushback() { pushbacks_.Increment(); }

  void CountRefusal(Refusal refusal) {
    refusals_.Add(static_cast<size_t>(refusal), 1, [&] {
      return prometheus::Labels{{"reason", RefusalName(refusal)}};
    });
  }

  void ObserveTiming(const Timing& timing, int priority) {
    const StageSet& set = stage_sets_[PriorityClass(priority)];
    size_t stage = 0;
    for (const int64_t us :
         {timing.queue_us, timing.upload_us, timing.run_us, timing.download_us, timing.total_us}) {
      set[stage++]->Observe(static_cast<double>(us) * 1e-6);
    }
  }

  void ObserveBatch(int64_t requests, double fill) {
    batch_requests_.Observe(static_cast<double>(requests));
    batch_fill_.Observe(fill);
  }

  void ObservePrediction(double predicted_s, double actual_s) {
    if (actual_s > 0) predicted_.Observe(predicted_s / actual_s);
  }

  void ObserveKernel(absl::string_view kernel, double run_seconds) {
    KernelHistogram(kernel).Observe(run_seconds);
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

  using CounterFamily = prometheus::Family<prometheus::Counter>;
  using HistogramFamily = prometheus::Family<prometheus::Histogram>;
  using StageSet = std::array<prometheus::Histogram*, 5>;
  using ByTransport = CounterCells<std::size(kTransports)>;

  static void CountByTransport(ByTransport& cells, const char* transport, int64_t by) {
    const size_t cell = TransportIndex(transport);
    cells.Add(cell, static_cast<double>(by), [&] {
      return prometheus::Labels{{"transport", kTransports[cell]}};
    });
  }

  CounterFamily& NewCounters(const char* name, const char* help) {
    return MakeFamily(prometheus::BuildCounter(), registry_, name, help);
  }
  prometheus::Counter& Counter(const char* name, const char* help) {
    return NewCounters(name, help).Add({});
  }
  HistogramFamily& Histograms(const char* name, const char* help) {
    return MakeFamily(prometheus::BuildHistogram(), registry_, name, help);
  }

  prometheus::Histogram& KernelHistogram(absl::string_view kernel) {
    MutexLock lock(mutex_);
    auto found = kernel_histograms_.find(kernel);
    if (found == kernel_histograms_.end()) {
      const bool is_own =
          IsKernelName(kernel) && static_cast<int64_t>(kernel_histograms_.size()) < kMaxKernelNames;
      const std::string name = is_own ? std::string(kernel) : "other";
      prometheus::Histogram& histogram = kernels_.Add({{"kernel", name}}, kKernelBuckets);
      if (!is_own) return histogram;
      found = kernel_histograms_.emplace(name, &histogram).first;
    }
    return *found->second;
  }

  prometheus::Registry registry_;
  prometheus::Counter& received_;
  ByTransport received_bytes_;
  ByTransport sent_bytes_;
  prometheus::Counter& pushbacks_;
  CounterCells<kRefusals> refusals_;
  ByTransport calls_;
  CounterCells<kCodes * kStages> finished_;
  HistogramFamily& stages_;
  std::vector<StageSet> stage_sets_;  // by class of priority
  HistogramFamily& kernels_;
  prometheus::Histogram& batch_requests_;
  prometheus::Histogram& batch_fill_;
  prometheus::Histogram& predicted_;
  std::atomic<int64_t> received_calls_{0};
  std::atomic<int64_t> finished_calls_{0};

  Mutex mutex_;
  std::map<std::string, Gauge> gauges_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Counters> counters_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, prometheus::Histogram*, std::less<>> kernel_histograms_
      ABSL_GUARDED_BY(mutex_);
  std::string version_ ABSL_GUARDED_BY(mutex_);
  std::string backend_ ABSL_GUARDED_BY(mutex_);
};

const char* RefusalName(Refusal refusal) {
  switch (refusal) {
    case Refusal::kQueueRequests:
      return "queue_requests";
    case Refusal::kQueueBytes:
      return "queue_bytes";
    case Refusal::kQueueTime:
      return "queue_time";
    case Refusal::kTenantRequests:
      return "tenant_requests";
    case Refusal::kTenantBytes:
      return "tenant_bytes";
    case Refusal::kTenantTime:
      return "tenant_time";
    case Refusal::kTooLarge:
      return "too_large";
    case Refusal::kHopeless:
      return "hopeless";
    case Refusal::kExpired:
      return "expired";
    case Refusal::kDraining:
      return "draining";
  }
  return "?";
}

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
void Metrics::CountRefusal(Refusal refusal) { impl_->CountRefusal(refusal); }
void Metrics::ObserveTiming(const Timing& timing, int priority) {
  impl_->ObserveTiming(timing, priority);
}
void Metrics::ObserveBatch(int64_t requests, double fill) { impl_->ObserveBatch(requests, fill); }
void Metrics::ObservePrediction(double predicted_s, double actual_s) {
  impl_->ObservePrediction(predicted_s, actual_s);
}
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
