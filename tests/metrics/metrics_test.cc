#include "server/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "server/scheduler/tenants.h"

namespace attnd::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr Stage kStages[] = {Stage::kReceive, Stage::kQueue,    Stage::kUpload,
                             Stage::kRun,     Stage::kDownload, Stage::kDone};

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Name and labels of every sample.
std::vector<std::string> Series(const std::string& text) {
  std::vector<std::string> series;
  for (const std::string& line : Lines(text)) {
    if (!line.empty() && line[0] != '#') series.push_back(line.substr(0, line.rfind(' ')));
  }
  return series;
}

void AddEveryGauge(Metrics& metrics) {
  for (const char* name :
       {"attnd_queue_requests", "attnd_queue_bytes", "attnd_receive_budget_bytes",
        "attnd_receive_used_bytes", "attnd_receive_waiting_requests", "attnd_pool_used_bytes",
        "attnd_pool_kept_bytes", "attnd_serving", "attnd_queue_seconds", "attnd_pinned_held_bytes",
        "attnd_device_used_bytes", "attnd_device_held_bytes", "attnd_region_connections",
        "attnd_regions", "attnd_region_bytes", "attnd_region_leases", "attnd_cuda_regions",
        "attnd_cuda_region_bytes"}) {
    metrics.AddGauge(name, "A gauge.", [] { return 1.0; });
  }
}

void FillWithEverything(Metrics& metrics) {
  AddEveryGauge(metrics);
  metrics.AddCounters("attnd_tenant_device_seconds_total", "Counters.", "tenant", [] {
    Metrics::Counts counts;
    for (size_t i = 0; i < kMaxTenants; ++i) counts.emplace_back(std::to_string(i), 1.0);
    return counts;
  });
  metrics.AddCounters("attnd_region_refusals_total", "Counters.", "reason", [] {
    Metrics::Counts counts;
    for (int i = 0; i < 8; ++i) counts.emplace_back(std::to_string(i), 1.0);
    return counts;
  });
  metrics.SetBuildInfo("0.1.0", "avx512");
  for (int code = 0; code < 40; ++code) {
    for (const Stage stage : kStages) {
      metrics.CountFinished(static_cast<absl::StatusCode>(code), stage);
    }
  }
  for (int i = 0; i < 10000; ++i) metrics.ObserveKernel("kernel_" + std::to_string(i), 1e-3);
  for (const char* transport : {"unary", "stream"}) {
    metrics.CountCall(transport);
    metrics.CountReceived(transport, 1);
    metrics.CountSent(transport, 1);
  }
  metrics.CountRegionBytes(1, 1);
  metrics.CountPushback();
  for (int reason = 0; reason < kRefusals; ++reason) {
    metrics.CountRefusal(static_cast<Refusal>(reason));
  }
  metrics.ObserveBatch(3, 0.5);
  metrics.ObservePrediction(1, 2);
  for (int priority = -3; priority < 20; ++priority) {
    metrics.ObserveTiming({1, 2, 3, 4, 5}, priority);
  }
}

TEST(Metrics, CountsAndTotals) {
  Metrics metrics;
  metrics.CountReceived("unary", 100);
  metrics.CountReceived("unary", 23);
  metrics.CountSent("unary", 77);
  metrics.CountPushback();
  metrics.CountFinished(absl::StatusCode::kOk, Stage::kDone);
  metrics.CountFinished(absl::StatusCode::kDeadlineExceeded, Stage::kQueue);
  EXPECT_EQ(metrics.received(), 2);
  EXPECT_EQ(metrics.finished(), 2);
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text, HasSubstr("attnd_requests_received_total 2\n"));
  EXPECT_THAT(text, HasSubstr("attnd_received_bytes_total{transport=\"unary\"} 123\n"));
  EXPECT_THAT(text, HasSubstr("attnd_sent_bytes_total{transport=\"unary\"} 77\n"));
  EXPECT_THAT(text, HasSubstr("attnd_retry_pushback_total 1\n"));
  EXPECT_THAT(text, HasSubstr("attnd_requests_finished_total{code=\"OK\",stage=\"done\"} 1\n"));
  EXPECT_THAT(
      text,
      HasSubstr("attnd_requests_finished_total{code=\"DEADLINE_EXCEEDED\",stage=\"queue\"} 1\n"));
}

// S48: malformed requests are counted as failures.
TEST(Metrics, S48MalformedRequestsAreCounted) {
  Metrics metrics;
  for (int i = 0; i < 200; ++i) {
    metrics.CountReceived("unary", 0);
    metrics.CountFinished(absl::StatusCode::kInvalidArgument, Stage::kReceive);
  }
  EXPECT_THAT(metrics.Serialize(),
              HasSubstr("attnd_requests_finished_total{code=\"INVALID_ARGUMENT\",stage="
                        "\"receive\"} 200\n"));
  EXPECT_EQ(metrics.received(), metrics.finished());
}

TEST(Metrics, HistogramsAreInSeconds) {
  Metrics metrics;
  metrics.ObserveTiming(
      {.queue_us = 15, .upload_us = 0, .run_us = 1500000, .download_us = 0, .total_us = 1500015},
      0);
  metrics.ObserveBatch(3, 0.6);
  metrics.ObservePrediction(0.3, 0.1);
  metrics.ObserveKernel("attn_fwd_bf16_d64_causal_avx512", 0.25);
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text, HasSubstr("attnd_stage_seconds_sum{priority=\"default\",stage=\"run\"} 1.5\n"));
  EXPECT_THAT(
      text,
      HasSubstr("attnd_stage_seconds_bucket{priority=\"default\",stage=\"run\",le=\"1\"} 0\n"));
  EXPECT_THAT(
      text,
      HasSubstr("attnd_stage_seconds_bucket{priority=\"default\",stage=\"run\",le=\"2\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("attnd_stage_seconds_count{priority=\"default\",stage=\"total\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("attnd_batch_requests_bucket{le=\"4\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("attnd_batch_fill_ratio_bucket{le=\"0.5\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("attnd_batch_fill_ratio_bucket{le=\"0.75\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("attnd_predicted_over_actual_ratio_bucket{le=\"2\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("attnd_predicted_over_actual_ratio_bucket{le=\"4\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("attnd_kernel_run_seconds_sum{kernel="
                              "\"attn_fwd_bf16_d64_causal_avx512\"} 0.25\n"));
}

TEST(Metrics, HostileKernelNamesCannotGrowTheSeries) {
  Metrics metrics;
  metrics.ObserveKernel("kept", 1);
  for (int i = 0; i < 100000; ++i) metrics.ObserveKernel("kernel_" + std::to_string(i), 1e-3);
  for (const char* hostile : {"", "UPPER", "quote\"", "line\nbreak", "\xff\xfe", "a b", "{}"}) {
    metrics.ObserveKernel(hostile, 1e-3);
  }
  metrics.ObserveKernel(std::string(65, 'a'), 1e-3);
  metrics.ObserveKernel("kept", 1);
  const std::string text = metrics.Serialize();
  std::set<std::string> names;
  for (const std::string& series : Series(text)) {
    if (series.rfind("attnd_kernel_run_seconds_count", 0) == 0) names.insert(series);
  }
  EXPECT_EQ(static_cast<int64_t>(names.size()), Metrics::kMaxKernelNames + 1);
  EXPECT_THAT(text, HasSubstr("attnd_kernel_run_seconds_count{kernel=\"kept\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("attnd_kernel_run_seconds_count{kernel=\"other\"} " +
                              std::to_string(100000 - (Metrics::kMaxKernelNames - 1) + 8) + "\n"));
}

TEST(Metrics, AtMost2000SeriesWhateverHappens) {
  Metrics metrics;
  FillWithEverything(metrics);
  const std::vector<std::string> series = Series(metrics.Serialize());
  RecordProperty("series", static_cast<int>(series.size()));
  EXPECT_LE(series.size(), 2000u);
  EXPECT_GT(series.size(), 1000u) << "this test no longer fills the metrics";
  EXPECT_EQ(std::set<std::string>(series.begin(), series.end()).size(), series.size());
}

TEST(Metrics, TimesAreByClassOfPriority) {
  Metrics metrics;
  for (const int priority : {0, 1, 3, 4, 5, 9}) metrics.ObserveTiming({1, 2, 3, 4, 5}, priority);
  const std::string text = metrics.Serialize();
  const auto count = [](const char* priority, int n) {
    return HasSubstr(std::string("attnd_stage_seconds_count{priority=\"") + priority +
                     "\",stage=\"queue\"} " + std::to_string(n) + "\n");
  };
  EXPECT_THAT(text, count("high", 2));
  EXPECT_THAT(text, count("default", 3)) << "0 is the default";
  EXPECT_THAT(text, count("low", 1));
}

TEST(Metrics, RefusalsAreByReason) {
  Metrics metrics;
  EXPECT_THAT(metrics.Serialize(), Not(HasSubstr("attnd_refusals_total{")));
  metrics.CountRefusal(Refusal::kHopeless);
  metrics.CountRefusal(Refusal::kHopeless);
  metrics.CountRefusal(Refusal::kTenantBytes);
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text, HasSubstr("attnd_refusals_total{reason=\"hopeless\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("attnd_refusals_total{reason=\"tenant_bytes\"} 1\n"));
}

TEST(Metrics, GaugesAreReadWhenScraped) {
  Metrics metrics;
  double value = 1;
  int reads = 0;
  metrics.AddGauge("attnd_queue_requests", "Requests that wait.", [&] {
    ++reads;
    return value;
  });
  EXPECT_EQ(reads, 0);
  EXPECT_THAT(metrics.Serialize(), HasSubstr("attnd_queue_requests 1\n"));
  value = 5;
  EXPECT_THAT(metrics.Serialize(), HasSubstr("attnd_queue_requests 5\n"));
  metrics.AddGauge("attnd_queue_requests", "Requests that wait.", [] { return 9.0; });
  EXPECT_THAT(metrics.Serialize(), HasSubstr("attnd_queue_requests 9\n"));
  metrics.RemoveGauges();
  EXPECT_THAT(metrics.Serialize(), Not(HasSubstr("attnd_queue_requests")));
  EXPECT_EQ(reads, 2);
}

TEST(Metrics, BuildInfoIsOneSeriesWithTheLatestValues) {
  Metrics metrics;
  EXPECT_THAT(metrics.Serialize(), Not(HasSubstr("attnd_build_info")));
  metrics.SetBuildInfo("0.1.0", "portable");
  metrics.SetBuildInfo("0.1.0", "avx512");
  EXPECT_THAT(metrics.Serialize(),
              HasSubstr("attnd_build_info{version=\"0.1.0\",backend=\"avx512\"} 1\n"));
  EXPECT_THAT(metrics.Serialize(), Not(HasSubstr("portable")));
}

// Every family has HELP and TYPE before its first sample, and ends where the next begins.
TEST(Metrics, TheTextIsWellFormed) {
  Metrics metrics;
  FillWithEverything(metrics);
  std::string family;
  std::string type;
  std::set<std::string> seen;
  for (const std::string& line : Lines(metrics.Serialize())) {
    std::istringstream words(line);
    std::string hash, keyword, name;
    if (line[0] == '#') {
      words >> hash >> keyword >> name;
      if (keyword == "HELP") {
        EXPECT_TRUE(seen.insert(name).second) << name << " twice";
        family = name;
      } else {
        ASSERT_EQ(keyword, "TYPE");
        EXPECT_EQ(name, family);
        words >> type;
      }
      continue;
    }
    EXPECT_EQ(line.rfind(family, 0), 0u) << line;
    EXPECT_EQ(line.rfind("attnd_", 0), 0u) << line;
    if (type == "counter") {
      EXPECT_THAT(family, ::testing::EndsWith("_total"));
    }
    EXPECT_NE(line.rfind(' '), std::string::npos);
    char* end = nullptr;
    std::strtod(line.c_str() + line.rfind(' '), &end);
    EXPECT_EQ(*end, '\0') << line;
  }
  EXPECT_EQ(seen.size(), 33u);
}

// Prometheus' own linter, where there is one.
TEST(Metrics, PromtoolFindsNothingToComplainOf) {
  if (std::system("promtool --version > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "no promtool here (Debian: package prometheus)";
  }
  Metrics metrics;
  FillWithEverything(metrics);
  const std::string path = ::testing::TempDir() + "attnd_metrics_test.txt";
  std::ofstream(path) << metrics.Serialize();
  const std::string command = "promtool check metrics < " + path;
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::remove(path.c_str());
}

TEST(Metrics, ThreadsCountWhileOthersScrape) {
  constexpr int kThreads = 4;
  constexpr int kCalls = 2000;
  Metrics metrics;
  AddEveryGauge(metrics);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kCalls; ++i) {
        metrics.CountReceived("unary", 1);
        metrics.CountFinished(absl::StatusCode::kOk, kStages[i % 6]);
        metrics.ObserveKernel("kernel_" + std::to_string(i % 300), 1e-3);
        metrics.ObserveTiming({1, 2, 3, 4, 5}, 0);
        if (i % 500 == 0) metrics.Serialize();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(metrics.received(), kThreads * kCalls);
  EXPECT_EQ(metrics.finished(), kThreads * kCalls);
  EXPECT_THAT(metrics.Serialize(),
              HasSubstr("attnd_stage_seconds_count{priority=\"default\",stage=\"run\"} 8000\n"));
}

}  // namespace
}  // namespace attnd::server
