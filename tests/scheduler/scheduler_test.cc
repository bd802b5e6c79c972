// The scheduler's threads, on a clock that the test moves.
#include "server/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/fakes/fake_clock.h"
#include "tests/fakes/requests.h"

namespace attnd::server {
namespace {

using fakes::Probe;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SchedulerTest : public ::testing::Test {
 protected:
  void Start(const SchedulerOptions& options) {
    scheduler_ = std::make_unique<Scheduler>(options, &clock_, &metrics_);
  }

  TimePoint now() const { return clock_.Now(); }

  static std::vector<std::string> Ids(const absl::optional<Batch>& batch) {
    std::vector<std::string> ids;
    if (!batch.has_value()) return {"no batch"};
    for (const JobPtr& job : batch->jobs) ids.push_back(job->request().request_id);
    return ids;
  }

  static void FinishAll(const absl::optional<Batch>& batch) {
    for (const JobPtr& job : batch->jobs) job->Finish(Answer(), Stage::kDone);
  }

  // NextBatch on a thread of its own.
  std::future<absl::optional<Batch>> AskForBatch() {
    return std::async(std::launch::async, [this] { return scheduler_->NextBatch(); });
  }

  fakes::FakeClock clock_;
  Metrics metrics_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(SchedulerTest, HandsOutWhatWasSubmitted) {
  Start({});
  Probe a({.id = "a", .arrival = now()});
  Probe b({.id = "b", .priority = 1, .arrival = now()});
  ASSERT_TRUE(scheduler_->Submit(a.job()).ok());
  ASSERT_TRUE(scheduler_->Submit(b.job()).ok());
  EXPECT_EQ(scheduler_->queued_requests(), 2);
  EXPECT_EQ(scheduler_->queued_bytes(), 128);
  const absl::optional<Batch> batch = scheduler_->NextBatch();
  EXPECT_THAT(Ids(batch), ElementsAre("b", "a"));
  EXPECT_EQ(batch->id, 1u);
  EXPECT_EQ(scheduler_->queued_requests(), 0);
  EXPECT_EQ(scheduler_->queued_bytes(), 0);
  FinishAll(batch);
}

TEST_F(SchedulerTest, AnExecutorWaitsForWork) {
  Start({});
  std::future<absl::optional<Batch>> next = AskForBatch();
  Probe a({.id = "a", .arrival = now()});
  ASSERT_TRUE(scheduler_->Submit(a.job()).ok());
  const absl::optional<Batch> batch = next.get();
  EXPECT_THAT(Ids(batch), ElementsAre("a"));
  FinishAll(batch);
}

TEST_F(SchedulerTest, ABatchWaitsForItsDelayAndTheClockEndsIt) {
  Start({.max_batch_problems = 10, .max_batch_delay_us = 5000});
  std::future<absl::optional<Batch>> next = AskForBatch();
  Probe a({.id = "a", .arrival = now()});
  ASSERT_TRUE(scheduler_->Submit(a.job()).ok());
  clock_.Advance(microseconds(4999));
  Probe b({.id = "b", .arrival = now()});
  ASSERT_TRUE(scheduler_->Submit(b.job()).ok());
  EXPECT_EQ(scheduler_->queued_requests(), 2) << "nothing is handed out before the delay";
  clock_.Advance(microseconds(1));
  const absl::optional<Batch> batch = next.get();
  EXPECT_THAT(Ids(batch), ElementsAre("a", "b"));
  FinishAll(batch);
}

TEST_F(SchedulerTest, AFullBatchDoesNotWaitForTheDelay) {
  Start({.max_batch_problems = 2, .max_batch_delay_us = 5000});
  std::future<absl::optional<Batch>> next = AskForBatch();
  Probe a({.id = "a", .arrival = now()});
  Probe b({.id = "b", .arrival = now()});
  ASSERT_TRUE(scheduler_->Submit(a.job()).ok());
  ASSERT_TRUE(scheduler_->Submit(b.job()).ok());
  const absl::optional<Batch> batch = next.get();
  EXPECT_THAT(Ids(batch), ElementsAre("a", "b"));
  FinishAll(batch);
}

// S29: the queue's deadline of 10 s fires at 10 s behind a job of 90 s.
TEST_F(SchedulerTest, S29ADeadlineFiresAtItsTimeThoughTheExecutorIsBusy) {
  Start({.max_batch_problems = 1});
  Probe running({.id = "90 s", .arrival = now()});
  ASSERT_TRUE(scheduler_->Submit(running.job()).ok());
  const absl::optional<Batch> batch = scheduler_->NextBatch();  // and never comes back until below
  Probe queued({.id = "10 s", .arrival = now(), .deadline = now() + seconds(10)});
  ASSERT_TRUE(scheduler_->Submit(queued.job()).ok());
  clock_.Advance(seconds(10) - microseconds(1));
  EXPECT_EQ(queued.times_ended(), 0);
  clock_.Advance(microseconds(1));
  EXPECT_EQ(queued.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(queued.stage(), Stage::kQueue);
  EXPECT_EQ(scheduler_->queued_requests(), 0);
  EXPECT_EQ(running.times_ended(), 0);
  FinishAll(batch);
}

TEST_F(SchedulerTest, AnEarlierDeadlineWakesTheReaperEarlier) {
  Start({});
  Probe late({.arrival = now(), .deadline = now() + seconds(100)});
  Probe soon({.arrival = now(), .deadline = now() + seconds(1)});
  ASSERT_TRUE(scheduler_->Submit(late.job()).ok());
  ASSERT_TRUE(scheduler_->Submit(soon.job()).ok());
  clock_.Advance(seconds(1));
  EXPECT_EQ(soon.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late.times_ended(), 0);
}

// S27: a deadline that passes while the request is queued: never run, whoever looks first.
TEST_F(SchedulerTest, S27AnExpiredRequestIsNeverHandedOut) {
  for (int round = 0; round < 50; ++round) {
    Start({});
    Probe expired({.id = "expired", .arrival = now(), .deadline = now() + seconds(1)});
    Probe good({.id = "good", .arrival = now()});
    ASSERT_TRUE(scheduler_->Submit(expired.job()).ok());
    ASSERT_TRUE(scheduler_->Submit(good.job()).ok());
    clock_.Advance(seconds(1));
    const absl::optional<Batch> batch = scheduler_->NextBatch();  // races with the reaper
    EXPECT_THAT(Ids(batch), ElementsAre("good"));
    EXPECT_EQ(expired.status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(expired.times_ended(), 1);
    FinishAll(batch);
  }
}

TEST_F(SchedulerTest, CancelEndsAQueuedJobAtOnce) {
  Start({});
  Probe probe({.arrival = now()});
  ASSERT_TRUE(scheduler_->Submit(probe.job()).ok());
  scheduler_->Cancel(probe.job());
  EXPECT_EQ(probe.times_ended(), 1);
  EXPECT_EQ(probe.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(probe.stage(), Stage::kQueue);
  EXPECT_EQ(scheduler_->queued_requests(), 0);
  scheduler_->Cancel(probe.job());
  EXPECT_EQ(probe.times_ended(), 1);
}

TEST_F(SchedulerTest, CancelMarksARunningJob) {
  Start({});
  Probe probe({.arrival = now()});
  ASSERT_TRUE(scheduler_->Submit(probe.job()).ok());
  const absl::optional<Batch> batch = scheduler_->NextBatch();
  scheduler_->Cancel(probe.job());
  EXPECT_EQ(probe.times_ended(), 0);
  EXPECT_TRUE(batch->jobs[0]->cancelled());
  FinishAll(batch);
}

// S22, the order that races otherwise hide: the cancellation comes first.
TEST_F(SchedulerTest, S22CancelBeforeSubmitIsNotLost) {
  Start({});
  Probe probe({.arrival = now()});
  scheduler_->Cancel(probe.job());
  EXPECT_EQ(scheduler_->Submit(probe.job()).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(probe.times_ended(), 0) << "a refused job is its owner's";
  EXPECT_EQ(scheduler_->queued_requests(), 0);
  probe.job()->Finish(absl::CancelledError(""), Stage::kQueue);
}

TEST_F(SchedulerTest, AFullQueueTellsWhenToComeAgain) {
  Start({.max_queue_requests = 2, .max_batch_problems = 1});
  Probe a({.id = "a", .arrival = now()});
  ASSERT_TRUE(scheduler_->Submit(a.job()).ok());
  FinishAll(scheduler_->NextBatch());
  clock_.Advance(milliseconds(30));  // the executor is busy for 30 ms, then asks again
  Probe b({.id = "b", .arrival = now()});
  Probe c({.id = "c", .arrival = now()});
  Probe d({.id = "d", .arrival = now()});
  ASSERT_TRUE(scheduler_->Submit(b.job()).ok());
  const absl::optional<Batch> running = scheduler_->NextBatch();
  ASSERT_TRUE(scheduler_->Submit(c.job()).ok());
  ASSERT_TRUE(scheduler_->Submit(d.job()).ok());
  Probe refused({.id = "refused", .arrival = now()});
  const absl::Status status = scheduler_->Submit(refused.job());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_queue_requests is 2"));
  EXPECT_EQ(RetryPushbackMs(status).value_or(0), 60) << "two requests of 30 ms";
  EXPECT_EQ(refused.times_ended(), 0) << "a refused job is its owner's";
  EXPECT_THAT(metrics_.Serialize(), HasSubstr("attnd_retry_pushback_total 1\n"));
  FinishAll(running);
  FinishAll(scheduler_->NextBatch());
  FinishAll(scheduler_->NextBatch());
  EXPECT_TRUE(scheduler_->Submit(refused.job()).ok());
}

TEST_F(SchedulerTest, WhatCanNeverFitIsNotToldToComeAgain) {
  Start({.max_queue_bytes = 100});
  Probe probe({.arrival = now(), .answer_bytes = 101});
  EXPECT_EQ(RetryPushbackMs(scheduler_->Submit(probe.job())).value_or(0), -1);
  EXPECT_THAT(metrics_.Serialize(), HasSubstr("attnd_retry_pushback_total 0\n"));
}

TEST_F(SchedulerTest, DrainRefusesNewOnesAndRunsTheRestWithoutDelay) {
  Start({.max_batch_problems = 10, .max_batch_delay_us = 1000000});
  Probe queued({.id = "queued", .arrival = now()});
  ASSERT_TRUE(scheduler_->Submit(queued.job()).ok());
  std::future<absl::optional<Batch>> next = AskForBatch();
  scheduler_->Drain();
  Probe late({.arrival = now()});
  const absl::Status status = scheduler_->Submit(late.job());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the server is draining"));
  const absl::optional<Batch> batch = next.get();
  EXPECT_THAT(Ids(batch), ElementsAre("queued"));
  EXPECT_FALSE(scheduler_->NextBatch().has_value());
  FinishAll(batch);
}

TEST_F(SchedulerTest, DrainWakesEveryIdleExecutor) {
  Start({});
  std::future<absl::optional<Batch>> first = AskForBatch();
  std::future<absl::optional<Batch>> second = AskForBatch();
  scheduler_->Drain();
  EXPECT_FALSE(first.get().has_value());
  EXPECT_FALSE(second.get().has_value());
}

TEST_F(SchedulerTest, StopEndsTheQueueWithItsStatus) {
  Start({});
  Probe running({.arrival = now()});
  ASSERT_TRUE(scheduler_->Submit(running.job()).ok());
  const absl::optional<Batch> batch = scheduler_->NextBatch();
  Probe queued({.arrival = now()});
  ASSERT_TRUE(scheduler_->Submit(queued.job()).ok());
  scheduler_->Stop(absl::UnavailableError("the device was lost"));
  EXPECT_EQ(queued.times_ended(), 1);
  EXPECT_EQ(queued.status(), absl::UnavailableError("the device was lost"));
  EXPECT_EQ(running.times_ended(), 0);
  Probe late({.arrival = now()});
  EXPECT_EQ(scheduler_->Submit(late.job()), absl::UnavailableError("the device was lost"));
  EXPECT_FALSE(scheduler_->NextBatch().has_value());
  FinishAll(batch);
}

TEST_F(SchedulerTest, DestructionEndsWhatIsQueued) {
  Start({});
  Probe queued({.arrival = now(), .deadline = now() + seconds(5)});
  ASSERT_TRUE(scheduler_->Submit(queued.job()).ok());
  scheduler_.reset();
  EXPECT_EQ(queued.times_ended(), 1);
  EXPECT_EQ(queued.status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(SchedulerTest, RequeuedJobsKeepTheirPlaceAndStillExpireAndCancel) {
  Start({.max_queue_requests = 3, .max_batch_problems = 3});
  Probe a({.id = "a", .arrival = now()});
  Probe b({.id = "b", .arrival = now(), .deadline = now() + seconds(1)});
  Probe c({.id = "c", .arrival = now()});
  for (const Probe* probe : {&a, &b, &c}) ASSERT_TRUE(scheduler_->Submit(probe->job()).ok());
  const absl::optional<Batch> batch = scheduler_->NextBatch();
  Probe d({.id = "d", .arrival = now()});
  ASSERT_TRUE(scheduler_->Submit(d.job()).ok());
  scheduler_->Cancel(c.job());  // while nobody's: not queued, not running
  scheduler_->Requeue(batch->jobs);
  EXPECT_EQ(c.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(scheduler_->queued_requests(), 3);
  clock_.Advance(seconds(1));
  EXPECT_EQ(b.status().code(), absl::StatusCode::kDeadlineExceeded);
  const absl::optional<Batch> again = scheduler_->NextBatch();
  EXPECT_THAT(Ids(again), ElementsAre("a", "d"));
  scheduler_->Stop(absl::UnavailableError("stopped"));
  scheduler_->Requeue(again->jobs);
  EXPECT_EQ(a.status(), absl::UnavailableError("stopped"));
  EXPECT_EQ(d.status(), absl::UnavailableError("stopped"));
  for (const Probe* probe : {&a, &b, &c, &d}) EXPECT_EQ(probe->times_ended(), 1);
}

TEST(RetryPushback, TravelsInTheStatus) {
  absl::Status status = absl::ResourceExhaustedError("full");
  EXPECT_FALSE(RetryPushbackMs(status).has_value());
  SetRetryPushbackMs(status, 250);
  EXPECT_EQ(RetryPushbackMs(status).value_or(0), 250);
  SetRetryPushbackMs(status, -1);
  EXPECT_EQ(RetryPushbackMs(status).value_or(0), -1);
  EXPECT_EQ(status.message(), "full");
}

}  // namespace
}  // namespace attnd::server
