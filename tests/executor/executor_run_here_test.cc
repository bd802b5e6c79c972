// Small jobs on the thread that brings them: when that is done, and when not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "server/executor/dispatcher.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/requests.h"

namespace attnd::server {
namespace {

using fakes::FakeDevice;
using fakes::Gate;
using fakes::Probe;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::chrono::milliseconds kMostHere(1);

class RunHereTest : public ::testing::Test {
 protected:
  void Start(const SchedulerOptions& options = {}, int max_batches = 1) {
    device_ = std::make_unique<FakeDevice>(max_batches);
    scheduler_ = std::make_unique<Scheduler>(options, &clock_, &metrics_);
    executor_ = std::make_unique<Executor>(
        ExecutorOptions{[this](const absl::Status& status) { lost_.push_back(status); }},
        scheduler_.get(), device_.get(), &pool_, &clock_, &metrics_);
  }
  void Drain() {
    scheduler_->Drain();
    executor_.reset();
  }
  // The executor's thread has the turn until it waits for a batch.
  bool RunsHereBeforeLong(Probe& probe) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!executor_->RunHere(probe.job(), kMostHere)) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::yield();
    }
    return true;
  }

  fakes::FakeClock clock_;
  Metrics metrics_;
  BufferPool pool_{1 << 16};
  std::unique_ptr<FakeDevice> device_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<absl::Status> lost_;
  std::unique_ptr<Executor> executor_;
};

TEST_F(RunHereTest, AJobEndsOnTheCallersThread) {
  Start();
  std::thread::id ran_on;
  device_->OnStage(Stage::kRun, [&](auto&) { ran_on = std::this_thread::get_id(); });
  Probe probe({.id = "a"});
  ASSERT_TRUE(RunsHereBeforeLong(probe));
  EXPECT_EQ(probe.times_ended(), 1);
  EXPECT_TRUE(probe.status().ok()) << probe.status();
  EXPECT_EQ(probe.answer().batch_size, 1);
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  EXPECT_THAT(device_->log(), ElementsAre("upload a", "run a", "download a"));
  // The thread still runs what is submitted, and the turn comes back.
  Probe submitted({.id = "b"});
  ASSERT_TRUE(scheduler_->Submit(submitted.job()).ok());
  EXPECT_TRUE(submitted.status().ok());
  EXPECT_NE(ran_on, std::this_thread::get_id());
  Probe again({.id = "c"});
  EXPECT_TRUE(RunsHereBeforeLong(again));
  Drain();
}

TEST_F(RunHereTest, NotWhileTheDeviceIsBusy) {
  Start();
  Gate gate;
  device_->OnStage(Stage::kRun, [&](auto&) { gate.Wait(); });
  Probe running({.id = "running"});
  ASSERT_TRUE(scheduler_->Submit(running.job()).ok());
  device_->WaitForLog(2);  // its run has begun
  Probe probe({.id = "a"});
  EXPECT_FALSE(executor_->RunHere(probe.job(), kMostHere));
  EXPECT_EQ(probe.times_ended(), 0);
  ASSERT_TRUE(scheduler_->Submit(probe.job()).ok());
  gate.Open();
  EXPECT_TRUE(probe.status().ok());
  Drain();
}

// Nor for a job that ends under RunHere and brings the next one.
TEST_F(RunHereTest, NotWithinAnother) {
  Start();
  Probe inner({.id = "inner"});
  bool nested = true;
  device_->OnStage(Stage::kDownload,
                   [&](auto&) { nested = executor_->RunHere(inner.job(), kMostHere); });
  Probe outer({.id = "outer"});
  ASSERT_TRUE(RunsHereBeforeLong(outer));
  EXPECT_FALSE(nested);
  EXPECT_EQ(inner.times_ended(), 0);
  Drain();
}

TEST_F(RunHereTest, NotWhereBatchesAreToFormOrTheDeviceMayNot) {
  Probe probe({.id = "a"});
  Start({.max_batch_delay_us = 100});
  EXPECT_EQ(scheduler_->TakeAlone(probe.job(), Duration::max()), absl::nullopt);
  Drain();
  Start({}, 3);
  EXPECT_FALSE(executor_->RunHere(probe.job(), kMostHere));
  EXPECT_THAT(device_->log(), IsEmpty());
  Drain();
}

TEST_F(RunHereTest, NotWhatIsLongRefusedOrNotFirst) {
  scheduler_ = std::make_unique<Scheduler>(SchedulerOptions{}, &clock_, &metrics_);
  Probe probe({.id = "a"});
  EXPECT_EQ(scheduler_->TakeAlone(probe.job(), Duration(-1)), absl::nullopt);
  Probe late({.id = "late", .deadline = clock_.Now() - microseconds(1)});
  EXPECT_EQ(scheduler_->TakeAlone(late.job(), Duration::max()), absl::nullopt);
  EXPECT_EQ(scheduler_->queued_requests(), 0);
  Probe first({.id = "first"});
  ASSERT_TRUE(scheduler_->Submit(first.job()).ok());
  EXPECT_EQ(scheduler_->TakeAlone(probe.job(), Duration::max()), absl::nullopt);
  EXPECT_EQ(scheduler_->queued_requests(), 1);
  scheduler_->NextBatch();
  EXPECT_NE(scheduler_->TakeAlone(probe.job(), Duration::max()), absl::nullopt);
  scheduler_->Drain();
  EXPECT_EQ(scheduler_->TakeAlone(probe.job(), Duration::max()), absl::nullopt);
}

TEST_F(RunHereTest, ADeviceLostHereIsLostForAll) {
  Start();
  device_->Fail(Stage::kRun, absl::InternalError("fell off the bus"));
  Probe probe({.id = "a"});
  ASSERT_TRUE(RunsHereBeforeLong(probe));
  EXPECT_EQ(probe.status(), absl::InternalError("fell off the bus"));
  Probe next({.id = "next"});
  EXPECT_EQ(scheduler_->Submit(next.job()).code(), absl::StatusCode::kUnavailable);
  executor_.reset();  // its thread ends by itself
  EXPECT_THAT(lost_, ElementsAre(absl::InternalError("fell off the bus")));
}

TEST_F(RunHereTest, WithoutMemoryItWaitsInTheQueue) {
  Start();
  Buffer hog = *pool_.Allocate(pool_.budget_bytes());
  Probe probe({.id = "a"});
  ASSERT_TRUE(RunsHereBeforeLong(probe));
  EXPECT_EQ(probe.times_ended(), 0);
  hog = Buffer();
  EXPECT_TRUE(probe.status().ok()) << probe.status();
  Drain();
}

TEST_F(RunHereTest, TheDispatcherTriesItFirst) {
  Start();
  std::thread::id ran_on;
  device_->OnStage(Stage::kRun, [&](auto&) { ran_on = std::this_thread::get_id(); });
  Dispatcher dispatcher({{device_.get(), scheduler_.get(), executor_.get()}}, &clock_);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (ran_on != std::this_thread::get_id() && std::chrono::steady_clock::now() < until) {
    Probe probe({.id = "a"});
    ASSERT_TRUE(dispatcher.Submit(probe.job(), kMostHere).ok());
    EXPECT_TRUE(probe.status().ok());
  }
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  Drain();
}

}  // namespace
}  // namespace attnd::server
