// Totals of requests, and the batches that follow from them.
#include "server/metrics/inference_statistics.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace attnd::server {
namespace {

constexpr Timing kTiming{
    .queue_us = 1, .upload_us = 2, .run_us = 3, .download_us = 4, .total_us = 5};

TEST(InferenceStatisticsTest, NothingAtFirst) {
  const auto totals = InferenceStatistics().totals();
  EXPECT_EQ(totals.answered.requests, 0);
  EXPECT_EQ(totals.batches(), 0);
  EXPECT_EQ(totals.last_answer_ms, 0);
}

TEST(InferenceStatisticsTest, AddsUp) {
  InferenceStatistics statistics;
  for (int i = 0; i < 6; ++i) statistics.CountAnswered(kTiming, 3);
  statistics.CountAnswered(kTiming, 1);
  statistics.CountFailed(std::chrono::milliseconds(7));
  const auto totals = statistics.totals();
  EXPECT_EQ(totals.answered.requests, 7);
  EXPECT_EQ(totals.answered.queue_us, 7);
  EXPECT_EQ(totals.answered.upload_us, 14);
  EXPECT_EQ(totals.answered.run_us, 21);
  EXPECT_EQ(totals.answered.download_us, 28);
  EXPECT_EQ(totals.answered.total_us, 35);
  EXPECT_EQ(totals.by_batch_size.at(3).requests, 6);
  EXPECT_EQ(totals.by_batch_size.at(3).run_us, 18);
  EXPECT_EQ(totals.batches(), 2 + 1);
  EXPECT_EQ(totals.failed, 1);
  EXPECT_EQ(totals.failed_us, 7000);
  EXPECT_GT(totals.last_answer_ms, int64_t{1'700'000'000'000});
}

TEST(InferenceStatisticsTest, ABatchThatLostARequestIsABatch) {
  InferenceStatistics statistics;
  for (int i = 0; i < 3; ++i) statistics.CountAnswered(kTiming, 4);
  EXPECT_EQ(statistics.totals().batches(), 1);
}

TEST(InferenceStatisticsTest, SizesAreBounded) {
  InferenceStatistics statistics;
  const auto most = static_cast<int64_t>(InferenceStatistics::kMaxBatchSizes);
  for (int64_t size = 1; size <= most + 10; ++size) statistics.CountAnswered(kTiming, size);
  const auto totals = statistics.totals();
  EXPECT_EQ(totals.by_batch_size.size(), InferenceStatistics::kMaxBatchSizes);
  EXPECT_EQ(totals.answered.requests, most + 10);
}

TEST(InferenceStatisticsTest, FromManyThreads) {
  InferenceStatistics statistics;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) statistics.CountAnswered(kTiming, 1 + i % 3);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(statistics.totals().answered.requests, 4000);
}

}  // namespace
}  // namespace attnd::server
