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

// A request with a problem that the tests' device takes 3 ms for, once that is learned.
class KnownRequests {
 public:
  std::unique_ptr<Request> Make(TimePoint arrival, TimePoint deadline = kNever) {
    std::unique_ptr<Request> request = fakes::MakeAttention(pool_, 64, 64, 0, 0, 0);
    request->arrival = arrival;
    request->deadline = deadline;
    return request;
  }
  void Teach(Scheduler& scheduler, TimePoint now) {
    for (int i = 0; i < 100; ++i) {
      scheduler.costs().Observe(Work(*Make(now)), milliseconds(3), now);
    }
  }

 private:
  BufferPool pool_{1 << 20};
};

TEST_F(SchedulerTest, AFullQueueTellsWhenToComeAgain) {
  Start({.max_queue_requests = 2, .max_batch_problems = 1});
  KnownRequests known;
  known.Teach(*scheduler_, now());
  Probe a(known.Make(now()));
  Probe b(known.Make(now()));
  ASSERT_TRUE(scheduler_->Submit(a.job()).ok());
  ASSERT_TRUE(scheduler_->Submit(b.job()).ok());
  EXPECT_NEAR(static_cast<double>(ToMicroseconds(scheduler_->queued_time())), 6000, 100);
  Probe refused(known.Make(now()));
  const absl::Status status = scheduler_->Submit(refused.job());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_queue_requests is 2"));
  EXPECT_NEAR(static_cast<double>(RetryPushbackMs(status).value_or(0)), 6, 1);
  EXPECT_EQ(refused.times_ended(), 0) << "a refused job is its owner's";
  EXPECT_THAT(metrics_.Serialize(), HasSubstr("attnd_retry_pushback_total 1\n"));
  EXPECT_THAT(metrics_.Serialize(),
              HasSubstr("attnd_refusals_total{reason=\"queue_requests\"} 1\n"));
  FinishAll(scheduler_->NextBatch());
  FinishAll(scheduler_->NextBatch());
  EXPECT_TRUE(scheduler_->Submit(refused.job()).ok());
}

// A deadline that even an idle device cannot meet is refused at once, and never run.
TEST_F(SchedulerTest, APlaceIsHeldWhileItsMessageComes) {
  Start({.max_queue_requests = 1});
  {
    absl::StatusOr<QueuePlace> place = scheduler_->HoldPlace("", 1 << 20);
    ASSERT_TRUE(place.ok());
    const QueuePlace moved = *std::move(place);
    EXPECT_EQ(RefusalOf(scheduler_->HoldPlace("", 1 << 20).status()), Refusal::kQueueRequests);
    EXPECT_EQ(RefusalOf(scheduler_->HoldPlace("", 100).status()), Refusal::kQueueRequests);
  }
  const absl::StatusOr<QueuePlace> small = scheduler_->HoldPlace("", 100);
  EXPECT_TRUE(small.ok());
  EXPECT_TRUE(scheduler_->HoldPlace("", 1 << 20).ok()) << "a small message is here already";
  scheduler_->Drain();
  EXPECT_EQ(scheduler_->HoldPlace("", 1 << 20).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(SchedulerTest, AHopelessDeadlineIsRefusedAtOnce) {
  Start({});
  KnownRequests known;
  Probe unknown(known.Make(now(), now() + milliseconds(1)));
  EXPECT_TRUE(scheduler_->Submit(unknown.job()).ok()) << "nothing is known yet";
  FinishAll(scheduler_->NextBatch());
  known.Teach(*scheduler_, now());
  Probe hopeless(known.Make(now(), now() + milliseconds(1)));
  const absl::Status status = scheduler_->Submit(hopeless.job());
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the deadline is in 1000 us"));
  EXPECT_EQ(scheduler_->queued_requests(), 0);
  EXPECT_THAT(metrics_.Serialize(), HasSubstr("attnd_refusals_total{reason=\"hopeless\"} 1\n"));
  Probe tight(known.Make(now(), now() + milliseconds(3)));
  EXPECT_TRUE(scheduler_->Submit(tight.job()).ok()) << "it may be met";
  // What was learned long ago refuses nobody.
  clock_.Advance(seconds(10));
  EXPECT_EQ(tight.status().code(), absl::StatusCode::kDeadlineExceeded);
  Probe later(known.Make(now(), now() + milliseconds(1)));
  EXPECT_TRUE(scheduler_->Submit(later.job()).ok());
}

// S22: a storm of deadlines of 1 ms, on a device that takes 3 ms: all end as DEADLINE_EXCEEDED,
// once, and none is run.
TEST_F(SchedulerTest, S22AStormOfShortDeadlinesRunsNothing) {
  Start({});
  KnownRequests known;
  known.Teach(*scheduler_, now());
  for (int i = 0; i < 1000; ++i) {
    Probe probe(known.Make(now(), now() + milliseconds(1)));
    const absl::Status status = scheduler_->Submit(probe.job());
    ASSERT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    probe.job()->Finish(status, Stage::kQueue);
  }
  EXPECT_FALSE(scheduler_->NextBatchBefore(now()).has_value());
}

TEST_F(SchedulerTest, FillIsThatOfTheNearestLimit) {
  Start({.max_batch_problems = 4, .max_batch_bytes = 1000, .max_slice_us = 400});
  Probe a({.arrival = now(), .answer_bytes = 600});
  Probe b({.arrival = now(), .answer_bytes = 100});
  EXPECT_DOUBLE_EQ(scheduler_->FillOf({b.job()}), 0.25);
  EXPECT_DOUBLE_EQ(scheduler_->FillOf({a.job()}), 0.6);
  a.job()->SetPredicted(microseconds(90));
  EXPECT_DOUBLE_EQ(scheduler_->FillOf({a.job(), b.job()}), 0.9);
  for (Probe* probe : {&a, &b}) probe->job()->Finish(Answer(), Stage::kDone);
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
