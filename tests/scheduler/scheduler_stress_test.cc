// Threads that submit, cancel, expire and serve at once, on the real clock: every job ends exactly
// once, and the counters balance.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/scheduler/scheduler.h"
#include "tests/fakes/requests.h"

namespace attnd::server {
namespace {

constexpr int kCodes = 17;

// How jobs ended, by status code.
struct Ends {
  std::array<std::atomic<int64_t>, kCodes> by_code{};

  int64_t of(absl::StatusCode code) const { return by_code[static_cast<size_t>(code)]; }
  int64_t total() const {
    int64_t sum = 0;
    for (const std::atomic<int64_t>& count : by_code) sum += count;
    return sum;
  }
};

JobPtr CountedJob(Ends* ends, const fakes::RequestSpec& spec) {
  return std::make_shared<Job>(fakes::MakeRequest(spec),
                               [ends](Job&, absl::StatusOr<Answer> answer, Stage) {
                                 ++ends->by_code[static_cast<size_t>(answer.status().code())];
                               });
}

class Storm {
 public:
  Storm(int submitters, int executors, int jobs_each, const SchedulerOptions& options)
      : jobs_each_(jobs_each),
        scheduler_(std::make_unique<Scheduler>(options, &clock_, &metrics_)) {
    for (int e = 0; e < executors; ++e) executors_.emplace_back([this] { Serve(); });
    for (int s = 0; s < submitters; ++s) submitters_.emplace_back([this, s] { SubmitAll(s); });
  }

  // Returns when every thread that ends jobs has ended, the scheduler's own too.
  void Join() {
    for (std::thread& thread : submitters_) thread.join();
    scheduler_->Drain();
    for (std::thread& thread : executors_) thread.join();
    EXPECT_EQ(scheduler_->queued_requests(), 0);
    EXPECT_EQ(scheduler_->queued_bytes(), 0);
    scheduler_.reset();
  }

  Ends ends;

 private:
  void SubmitAll(int seed) {
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    for (int i = 0; i < jobs_each_; ++i) {
      const TimePoint now = clock_.Now();
      // A third without a deadline, a third that may pass in the queue, a third passed already or
      // about to.
      const TimePoint deadlines[] = {kNever, now + microseconds(random() % 1000),
                                     now + microseconds(random() % 3)};
      const std::string tenants[] = {"a", "b", "nobody's"};
      const JobPtr job = CountedJob(&ends, {.priority = static_cast<int>(random() % 10),
                                            .arrival = now,
                                            .deadline = deadlines[random() % 3],
                                            .tenant = tenants[random() % 3]});
      // The file is read again and again.
      if (i % 100 == 0) scheduler_->SetTenants({{"default", 1}, {i % 200 == 0 ? "a" : "b", 3}});
      if (i % 100 == 50) {
        EXPECT_LE(scheduler_->tenants().size(), 2U);
      }
      const uint64_t fate = random() % 3;
      std::thread canceller;
      if (fate == 0) scheduler_->Cancel(job);
      if (fate == 1 && i % 16 == 0) canceller = std::thread([&] { scheduler_->Cancel(job); });
      const absl::Status refused = scheduler_->Submit(job);
      if (!refused.ok()) job->Finish(refused, Stage::kQueue);
      if (fate == 1 && refused.ok()) scheduler_->Cancel(job);
      if (canceller.joinable()) canceller.join();
    }
  }

  void Serve() {
    while (absl::optional<Batch> batch = scheduler_->NextBatch()) {
      std::vector<JobPtr> back;
      for (JobPtr& job : batch->jobs) {
        // Some come back once, as those that find no memory do.
        if (batch->id % 5 == 0 && back.size() < 3) {
          back.push_back(std::move(job));
        } else if (job->cancelled()) {
          EXPECT_TRUE(job->Finish(absl::CancelledError(""), Stage::kRun));
        } else {
          EXPECT_TRUE(job->Finish(Answer(), Stage::kDone));
        }
      }
      scheduler_->Requeue(back);
    }
  }

  const int jobs_each_;
  SteadyClock clock_;
  Metrics metrics_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::thread> submitters_;
  std::vector<std::thread> executors_;
};

// S22: cancel racing enqueue, and a storm of 1 ms deadlines.
TEST(SchedulerStress, S22EveryJobEndsExactlyOnce) {
  constexpr int kSubmitters = 4;
  constexpr int kJobsEach = 5000;
  Storm storm(kSubmitters, 2, kJobsEach,
              {.max_queue_requests = 64, .max_batch_problems = 8, .max_batch_delay_us = 50});
  storm.Join();
  EXPECT_EQ(storm.ends.total(), kSubmitters * kJobsEach);
  EXPECT_EQ(storm.ends.of(absl::StatusCode::kInternal), 0) << "a job was lost";
  EXPECT_GT(storm.ends.of(absl::StatusCode::kOk), 0);
  EXPECT_GT(storm.ends.of(absl::StatusCode::kCancelled), 0);
  EXPECT_GT(storm.ends.of(absl::StatusCode::kDeadlineExceeded), 0);
  EXPECT_EQ(storm.ends.of(absl::StatusCode::kOk) + storm.ends.of(absl::StatusCode::kCancelled) +
                storm.ends.of(absl::StatusCode::kDeadlineExceeded) +
                storm.ends.of(absl::StatusCode::kResourceExhausted),
            storm.ends.total());
}

TEST(SchedulerStress, StopInAStormEndsEveryJobOnce) {
  for (int round = 0; round < 20; ++round) {
    Ends ends;
    std::atomic<int64_t> submitted{0};
    SteadyClock clock;
    Metrics metrics;
    {
      Scheduler scheduler({.max_batch_problems = 4}, &clock, &metrics);
      std::vector<std::thread> threads;
      for (int t = 0; t < 3; ++t) {
        threads.emplace_back([&, t] {
          for (int i = 0; i < 300; ++i) {
            if (t == 0 && i == 150) scheduler.Stop(absl::UnavailableError("the device was lost"));
            const JobPtr job = CountedJob(
                &ends, {.arrival = clock.Now(), .deadline = clock.Now() + microseconds(200)});
            ++submitted;
            const absl::Status refused = scheduler.Submit(job);
            if (!refused.ok()) job->Finish(refused, Stage::kQueue);
          }
        });
      }
      threads.emplace_back([&] {
        while (absl::optional<Batch> batch = scheduler.NextBatch()) {
          for (const JobPtr& job : batch->jobs) job->Finish(Answer(), Stage::kDone);
        }
      });
      for (std::thread& thread : threads) thread.join();
    }
    ASSERT_EQ(ends.total(), submitted);
    ASSERT_EQ(ends.of(absl::StatusCode::kInternal), 0);
    ASSERT_GT(ends.of(absl::StatusCode::kUnavailable), 0);
  }
}

}  // namespace
}  // namespace attnd::server
