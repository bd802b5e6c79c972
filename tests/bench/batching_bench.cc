// What batching is worth: one small problem from many callers through the executor of one device,
// in batches as the scheduler forms them and one by one, alternating. See README.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "kernels/sync.h"
#include "server/executor/devices.h"
#include "server/executor/executor.h"
#include "server/memory/slab_allocator.h"
#include "tests/fakes/attention_requests.h"

ABSL_FLAG(std::string, devices, "auto", "As attnd's; the first one counts.");
ABSL_FLAG(int, callers, 64, "Each sends its next request when it has the last answer.");
ABSL_FLAG(int, time_ms, 1000, "Of a feed in a round.");
ABSL_FLAG(int, rounds, 3, "The median counts.");
ABSL_FLAG(std::string, json, "", "File for the results. Empty: none.");

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
  Feed(server::Scheduler& scheduler, server::BufferPool& payloads, const Request& like)
      : scheduler_(scheduler), payloads_(payloads), like_(like) {}

  Rate Run(int callers, std::chrono::milliseconds time) {
    for (int i = 0; i < callers; ++i) Submit();
    const steady_clock::time_point warm = steady_clock::now() + time / 4;
    const steady_clock::time_point end = warm + time;
    int64_t counted = 0;
    double batches = 0;
    int running = callers;
    while (running > 0) {
      for (const int64_t batch_size : TakeEnded()) {
        const steady_clock::time_point now = steady_clock::now();
        if (now >= warm && now < end) {
          ++counted;
          batches += 1.0 / static_cast<double>(batch_size);
        }
        now < end ? Submit() : static_cast<void>(--running);
      }
    }
    const auto n = static_cast<double>(counted);
    return {n / std::chrono::duration<double>(time).count(), n / batches};
  }

 private:
  void Submit() {
    auto request = std::make_unique<Request>();
    request->problems = like_.problems;
    request->output = like_.output;
    request->arrival = steady_clock::now();
    request->q = *payloads_.Allocate(like_.q.size_bytes());
    request->k = *payloads_.Allocate(like_.k.size_bytes());
    request->v = *payloads_.Allocate(like_.v.size_bytes());
    Check(scheduler_.Submit(std::make_shared<server::Job>(
        std::move(request),
        [this](server::Job&, absl::StatusOr<server::Answer> answer, server::Stage) {
          Check(answer.status());
          MutexLock lock(mutex_);
          ended_.push_back(answer->batch_size);
          if (ended_.size() == 1) changed_.NotifyOne();
        })));
  }

  std::vector<int64_t> TakeEnded() {
    MutexLock lock(mutex_);
    while (ended_.empty()) changed_.Wait(mutex_);
    return std::exchange(ended_, {});
  }

  server::Scheduler& scheduler_;
  server::BufferPool& payloads_;
  const Request& like_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<int64_t> ended_ ABSL_GUARDED_BY(mutex_);  // the sizes of their batches
};

Rate Measure(server::Device& device, int64_t max_batch_problems, const AttentionSpec& spec) {
  const auto payloads = PoolFor(device);
  const auto answers = PoolFor(device);
  const auto like = fakes::MakeRequest(*payloads, spec);
  const int callers = absl::GetFlag(FLAGS_callers);
  {  // what the pool hands out later holds numbers
    std::vector<std::unique_ptr<Request>> fill;
    for (int i = 0; i < callers; ++i) fill.push_back(fakes::MakeRequest(*payloads, spec));
  }
  server::SteadyClock clock;
  server::Metrics metrics;
  server::SchedulerOptions options;
  options.max_batch_problems = max_batch_problems;
  server::Scheduler scheduler(options, &clock, &metrics);
  server::Executor executor({[](const absl::Status& status) { Check(status); }}, &scheduler,
                            &device, answers.get(), &clock, &metrics);
  const Rate rate = Feed(scheduler, *payloads, *like)
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
                              .q_heads = 8,
                              .kv_heads = 8,
                              .q_len = 256,
                              .kv_len = 256,
                              .head_dim = 64};
  nlohmann::ordered_json results = {{"device", device.Describe().name},
                                    {"backend", device.Describe().backend},
                                    {"callers", absl::GetFlag(FLAGS_callers)},
                                    {"rows", nlohmann::ordered_json::array()}};
  std::vector<double> rates[2], sizes[2];
  constexpr int64_t kMaxProblems[2] = {64, 1};
  for (int round = 0; round < std::max(1, absl::GetFlag(FLAGS_rounds)); ++round) {
    for (int i = 0; i < 2; ++i) {
      const Rate rate = Measure(device, kMaxProblems[i], spec);
      rates[i].push_back(rate.calls_per_s);
      sizes[i].push_back(rate.requests_per_batch);
    }
  }
  std::printf("%s, %s: B1 H8 L256 D64 bf16, %d callers\n%-20s %12s %18s %14s\n",
              device.Describe().name.c_str(), device.Describe().backend.c_str(),
              absl::GetFlag(FLAGS_callers), "max_batch_problems", "calls_per_s",
              "requests_per_batch", "/one_by_one");
  for (int i = 0; i < 2; ++i) {
    const double rate = Median(rates[i]), ratio = rate / Median(rates[1]);
    results["rows"].push_back({{"max_batch_problems", kMaxProblems[i]},
                               {"calls_per_s", rate},
                               {"requests_per_batch", Median(sizes[i])},
                               {"ratio_to_one_by_one", ratio}});
    std::printf("%-20d %12.0f %18.1f %14.2f\n", static_cast<int>(kMaxProblems[i]), rate,
                Median(sizes[i]), ratio);
  }
  if (const std::string path = absl::GetFlag(FLAGS_json); !path.empty()) {
    std::FILE* const file = std::fopen(path.c_str(), "w");
    if (file == nullptr) Check(absl::NotFoundError(path + ": cannot be written"));
    std::fputs((results.dump(1) + "\n").c_str(), file);
    std::fclose(file);
  }
  return 0;
}

}  // namespace
}  // namespace attnd::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("times batches beside single requests.\n\nUsage: batching_bench");
  absl::ParseCommandLine(argc, argv);
  return attnd::bench::Main();
}
