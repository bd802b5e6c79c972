// What batching is worth: one small problem from many callers through the executor of one device,
// in batches as the scheduler forms them and one by one, alternating; with tensors that have to be
// brought, and with tensors that lie where the device uses them. See README.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/match.h"
#include "kernels/sync.h"
#include "server/executor/cuda_runtime.h"
#include "server/executor/devices.h"
#include "server/executor/executor.h"
#include "server/memory/slab_allocator.h"
#include "tests/bench/caller_tensors.h"
#include "tests/fakes/attention_requests.h"

ABSL_FLAG(std::string, devices, "auto", "As attnd's; the first one counts.");
ABSL_FLAG(int, callers, 64, "Each sends its next request when it has the last answer.");
ABSL_FLAG(int64_t, heads, 8, "Of Q, K and V.");
ABSL_FLAG(int64_t, len, 256, "Of Q, K and V.");
ABSL_FLAG(int64_t, head_dim, 64, "");
ABSL_FLAG(int, time_ms, 1000, "Of a feed in a round.");
ABSL_FLAG(int, rounds, 3, "The median counts.");
ABSL_FLAG(std::string, json, "", "File for the results. Empty: none.");
ABSL_FLAG(
    double, least_in_place, 0,
    "Exit with 2 unless batches of tensors in place are this many times as fast as one by one.");

namespace attnd::bench {
namespace {

using fakes::AttentionSpec;
using server::Request;
using std::chrono::steady_clock;

constexpr int64_t kPoolBytes = int64_t{1} << 30;

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "batching_bench: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

std::unique_ptr<server::BufferPool> PoolFor(server::Device& device) {
  std::shared_ptr<server::BlockAllocator> pinned = device.PinnedBlocks();
  if (pinned == nullptr) return std::make_unique<server::BufferPool>(kPoolBytes);
  return std::make_unique<server::BufferPool>(
      kPoolBytes, std::make_shared<server::SlabAllocator>(
                      server::SlabOptions{kPoolBytes, int64_t{64} << 20}, std::move(pinned)));
}

struct Rate {
  double calls_per_s = 0;
  double requests_per_batch = 0;
};

// Callers without threads of their own: who ends a call puts it here, and one thread sends the
// next.
class Feed {
 public:
  // `in_place` null: each request brings its tensors in `payloads`.
  Feed(server::Scheduler& scheduler, server::BufferPool& payloads, const Request& like,
       const CallerTensors* in_place)
      : scheduler_(scheduler), payloads_(payloads), like_(like), in_place_(in_place) {}

  Rate Run(int callers, std::chrono::milliseconds time) {
    for (int i = 0; i < callers; ++i) Submit(i);
    const steady_clock::time_point warm = steady_clock::now() + time / 4;
    const steady_clock::time_point end = warm + time;
    int64_t counted = 0;
    double batches = 0;
    int running = callers;
    while (running > 0) {
      for (const Ended& call : TakeEnded()) {
        const steady_clock::time_point now = steady_clock::now();
        if (now >= warm && now < end) {
          ++counted;
          batches += 1.0 / static_cast<double>(call.batch_size);
        }
        now < end ? Submit(call.caller) : static_cast<void>(--running);
      }
    }
    const auto n = static_cast<double>(counted);
    return {n / std::chrono::duration<double>(time).count(), n / batches};
  }

 private:
  struct Ended {
    int caller = 0;
    int64_t batch_size = 0;
  };

  void Submit(int caller) {
    auto request = std::make_unique<Request>();
    request->problems = like_.problems;
    request->output = like_.output;
    request->arrival = steady_clock::now();
    if (in_place_ != nullptr) {
      in_place_->LendTo(caller, *request);
    } else {
      request->q = *payloads_.Allocate(like_.q.size_bytes());
      request->k = *payloads_.Allocate(like_.k.size_bytes());
      request->v = *payloads_.Allocate(like_.v.size_bytes());
    }
    Check(scheduler_.Submit(std::make_shared<server::Job>(
        std::move(request),
        [this, caller](server::Job&, absl::StatusOr<server::Answer> answer, server::Stage) {
          Check(answer.status());
          MutexLock lock(mutex_);
          ended_.push_back({caller, answer->batch_size});
          if (ended_.size() == 1) changed_.NotifyOne();
        })));
  }

  std::vector<Ended> TakeEnded() {
    MutexLock lock(mutex_);
    while (ended_.empty()) changed_.Wait(mutex_);
    return std::exchange(ended_, {});
  }

  server::Scheduler& scheduler_;
  server::BufferPool& payloads_;
  const Request& like_;
  const CallerTensors* const in_place_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Ended> ended_ ABSL_GUARDED_BY(mutex_);
};

// A GPU's; null for a CPU.
absl::StatusOr<std::shared_ptr<server::Cuda>> CudaOf(const server::Device& device) {
  const std::string& id = device.Describe().id;
  if (!absl::StartsWith(id, "cuda:")) return nullptr;
  return server::OpenCuda(std::stoi(id.substr(5)));
}

// A way to feed the device.
struct Way {
  bool in_place = false;
  int64_t max_batch_problems = 0;
};

Rate Measure(server::Device& device, const Way& way, const AttentionSpec& spec) {
  const auto payloads = PoolFor(device);
  const auto answers = PoolFor(device);
  const auto like = fakes::MakeRequest(*payloads, spec);
  const int callers = absl::GetFlag(FLAGS_callers);
  std::unique_ptr<CallerTensors> in_place;
  if (way.in_place) {
    const auto cuda = CudaOf(device);
    Check(cuda.status());
    auto made = CallerTensors::Create(*cuda, *like, callers);
    Check(made.status());
    in_place = *std::move(made);
  } else {  // what the pool hands out later holds numbers
    std::vector<std::unique_ptr<Request>> fill;
    for (int i = 0; i < callers; ++i) fill.push_back(fakes::MakeRequest(*payloads, spec));
  }
  server::SteadyClock clock;
  server::Metrics metrics;
  server::SchedulerOptions options;
  options.max_batch_problems = way.max_batch_problems;
  server::Scheduler scheduler(options, &clock, &metrics);
  server::Executor executor({[](const absl::Status& status) { Check(status); }}, &scheduler,
                            &device, answers.get(), &clock, &metrics);
  const Rate rate = Feed(scheduler, *payloads, *like, in_place.get())
                        .Run(callers, std::chrono::milliseconds(absl::GetFlag(FLAGS_time_ms)));
  scheduler.Drain();
  return rate;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

int Main() {
  server::DeviceOptions device_options;
  device_options.devices = absl::GetFlag(FLAGS_devices);
  auto devices = server::CreateDevices(device_options);
  Check(devices.status());
  server::Device& device = *devices->front();
  const AttentionSpec spec = {.dtype = kernels::DType::kBF16,
                              .q_heads = absl::GetFlag(FLAGS_heads),
                              .kv_heads = absl::GetFlag(FLAGS_heads),
                              .q_len = absl::GetFlag(FLAGS_len),
                              .kv_len = absl::GetFlag(FLAGS_len),
                              .head_dim = absl::GetFlag(FLAGS_head_dim)};
  nlohmann::ordered_json results = {{"device", device.Describe().name},
                                    {"backend", device.Describe().backend},
                                    {"heads", spec.q_heads},
                                    {"len", spec.q_len},
                                    {"head_dim", spec.head_dim},
                                    {"callers", absl::GetFlag(FLAGS_callers)},
                                    {"rows", nlohmann::ordered_json::array()}};
  // Batches and their like one by one, next to each other.
  constexpr Way kWays[] = {{false, 64}, {false, 1}, {true, 64}, {true, 1}};
  constexpr size_t kNumWays = std::size(kWays);
  std::vector<double> rates[kNumWays], sizes[kNumWays];
  double in_place_ratio = 0;
  for (int round = 0; round < std::max(1, absl::GetFlag(FLAGS_rounds)); ++round) {
    for (size_t i = 0; i < kNumWays; ++i) {
      const Rate rate = Measure(device, kWays[i], spec);
      rates[i].push_back(rate.calls_per_s);
      sizes[i].push_back(rate.requests_per_batch);
    }
  }
  std::printf("%s, %s: B1 H%lld L%lld D%lld bf16, %d callers\n%-10s %-20s %12s %18s %14s\n",
              device.Describe().name.c_str(), device.Describe().backend.c_str(),
              static_cast<long long>(spec.q_heads), static_cast<long long>(spec.q_len),
              static_cast<long long>(spec.head_dim), absl::GetFlag(FLAGS_callers), "tensors",
              "max_batch_problems", "calls_per_s", "requests_per_batch", "/one_by_one");
  for (size_t i = 0; i < kNumWays; ++i) {
    const char* const tensors = kWays[i].in_place ? "in_place" : "brought";
    const double rate = Median(rates[i]), ratio = rate / Median(rates[i | 1]);
    if (kWays[i].in_place && kWays[i].max_batch_problems > 1) in_place_ratio = ratio;
    results["rows"].push_back({{"tensors", tensors},
                               {"max_batch_problems", kWays[i].max_batch_problems},
                               {"calls_per_s", rate},
                               {"requests_per_batch", Median(sizes[i])},
                               {"ratio_to_one_by_one", ratio}});
    std::printf("%-10s %-20d %12.0f %18.1f %14.2f\n", tensors,
                static_cast<int>(kWays[i].max_batch_problems), rate, Median(sizes[i]), ratio);
  }
  if (const std::string path = absl::GetFlag(FLAGS_json); !path.empty()) {
    std::FILE* const file = std::fopen(path.c_str(), "w");
    if (file == nullptr) Check(absl::NotFoundError(path + ": cannot be written"));
    std::fputs((results.dump(1) + "\n").c_str(), file);
    std::fclose(file);
  }
  return in_place_ratio >= absl::GetFlag(FLAGS_least_in_place) ? 0 : 2;
}

}  // namespace
}  // namespace attnd::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("times batches beside single requests.\n\nUsage: batching_bench");
  absl::ParseCommandLine(argc, argv);
  return attnd::bench::Main();
}
