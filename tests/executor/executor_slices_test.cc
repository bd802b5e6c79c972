// Batches in slices on the executor: who comes between, who waits, who leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/executor/executor.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/requests.h"

namespace attnd::server {
namespace {

using fakes::Probe;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ExecutorSlicesTest : public ::testing::Test {
 protected:
  ExecutorSlicesTest() {
    device_.OnStage(Stage::kRun, [this](std::vector<RunningJob>& jobs) {
      ++runs_;
      if (on_run_) on_run_(jobs.front().job->request().request_id, runs_);
    });
  }
  ~ExecutorSlicesTest() override {
    scheduler_.Drain();
    executor_.reset();
    for (const std::unique_ptr<Probe>& probe : probes_) EXPECT_EQ(probe->times_ended(), 1);
  }

  // Called as each slice and each short run begins, with how many there have been.
  void OnRun(std::function<void(const std::string& id, int runs)> on_run) {
    on_run_ = std::move(on_run);
  }
  void Start() {
    executor_ = std::make_unique<Executor>(ExecutorOptions(), &scheduler_, &device_, &pool_,
                                           &clock_, &metrics_);
  }
  Probe& Make(std::unique_ptr<Request> request) {
    request->arrival = clock_.Now();
    probes_.push_back(std::make_unique<Probe>(std::move(request)));
    return *probes_.back();
  }
  Probe& Submit(Probe& probe) {
    EXPECT_TRUE(scheduler_.Submit(probe.job()).ok());
    return probe;
  }
  // Predicted to take a microsecond, which is as long as a batch may be here.
  Probe& MakeShort(const std::string& id) { return Make(fakes::MakeRequest({.id = id})); }
  // Predicted to take longer, and computed in slices.
  Probe& SubmitLong(const std::string& id, int slices, TimePoint deadline = kNever) {
    device_.Slice(id, slices);
    std::unique_ptr<Request> request = fakes::MakeAttention(pool_, 4, 8, 0, 0, 0);
    request->request_id = id;
    request->deadline = deadline;
    return Submit(Make(std::move(request)));
  }
  // What ran, slice by slice, once all has ended.
  std::vector<std::string> Runs() {
    for (const std::unique_ptr<Probe>& probe : probes_) probe->status();
    std::vector<std::string> runs;
    for (const std::string& line : device_.log()) {
      if (line.rfind("run ", 0) == 0) runs.push_back(line.substr(4));
    }
    return runs;
  }

  fakes::FakeClock clock_;
  Metrics metrics_;
  BufferPool pool_{1 << 16};
  fakes::FakeDevice device_;
  Scheduler scheduler_{{.max_slice_us = 4}, &clock_, &metrics_};
  int runs_ = 0;  // on the executor's thread
  std::function<void(const std::string&, int)> on_run_;
  std::vector<std::unique_ptr<Probe>> probes_;
  std::unique_ptr<Executor> executor_;
};

TEST_F(ExecutorSlicesTest, AShortRequestWaitsForASliceOfALongOne) {
  SubmitLong("long", 4);
  Probe& brief = MakeShort("short");
  OnRun([&](const std::string&, int runs) {
    if (runs == 2) Submit(brief);
  });
  Start();
  EXPECT_THAT(Runs(), ElementsAre("long", "long", "short", "long", "long"));
  EXPECT_EQ(device_.log().back(), "download long");
}

TEST_F(ExecutorSlicesTest, LongOnesTakeTurnsAndAShortOneWaitsForOneSliceOfOne) {
  SubmitLong("a", 4);
  SubmitLong("b", 4);
  Probe& brief = MakeShort("short");
  OnRun([&](const std::string&, int runs) {
    if (runs == 4) Submit(brief);
  });
  Start();
  EXPECT_THAT(Runs(), ElementsAre("a", "b", "a", "b", "short", "a", "b", "a", "b"));
}

// The third long one waits, though short ones pass it.
TEST_F(ExecutorSlicesTest, NoMoreThanTwoTakeTurns) {
  SubmitLong("a", 3);
  SubmitLong("b", 5);
  SubmitLong("c", 2);
  Probe& brief = MakeShort("short");
  OnRun([&](const std::string&, int runs) {
    if (runs == 3) Submit(brief);
  });
  Start();
  EXPECT_THAT(Runs(), ElementsAre("a", "b", "a", "short", "b", "a", "c", "b", "c", "b", "b"));
}

TEST_F(ExecutorSlicesTest, ACancelledOneComputesNoFurtherSlice) {
  Probe& gone = SubmitLong("gone", 1000);
  Probe& stays = SubmitLong("stays", 4);
  OnRun([&](const std::string&, int runs) {
    if (runs == 3) scheduler_.Cancel(gone.job());
  });
  Start();
  EXPECT_EQ(gone.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(gone.stage(), Stage::kRun);
  EXPECT_TRUE(stays.status().ok());
  EXPECT_THAT(Runs(), ElementsAre("gone", "stays", "gone", "stays", "stays", "stays"));
  EXPECT_THAT(metrics_.Serialize(), HasSubstr("attnd_batch_requests_sum 2\n"))
      << "it has run, if not to its end";
}

TEST_F(ExecutorSlicesTest, AnExpiredOneComputesNoFurtherSlice) {
  Probe& late = SubmitLong("late", 1000, clock_.Now() + std::chrono::milliseconds(25));
  OnRun([&](const std::string&, int) { clock_.Advance(std::chrono::milliseconds(10)); });
  Start();
  EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late.stage(), Stage::kRun);
  EXPECT_THAT(Runs(), ElementsAre("late", "late", "late"));
}

TEST_F(ExecutorSlicesTest, ASliceThatFailsEndsItsBatchAlone) {
  Probe& bad = SubmitLong("bad", 1000);
  OnRun([&](const std::string&, int runs) {
    if (runs == 2) device_.Fail(Stage::kRun, absl::FailedPreconditionError("no"));
  });
  Start();
  EXPECT_EQ(bad.status(), absl::FailedPreconditionError("no"));
  device_.StopFailing();
  EXPECT_TRUE(Submit(MakeShort("next")).status().ok());
}

// What a long batch took is its slices alone, without those of others between them.
TEST_F(ExecutorSlicesTest, OnlyItsOwnSlicesCountAsItsTime) {
  Probe& sliced = SubmitLong("long", 3);
  Probe& brief = MakeShort("short");
  OnRun([&](const std::string& id, int runs) {
    clock_.Advance(id == "long" ? microseconds(10) : microseconds(1000));
    if (runs == 1) Submit(brief);
  });
  Start();
  ASSERT_TRUE(sliced.status().ok());
  EXPECT_EQ(sliced.answer().timing.run_us, 1030) << "waiting for others included";
  scheduler_.Drain();
  executor_.reset();
  const std::string text = metrics_.Serialize();
  const std::string name = "attnd_predicted_over_actual_ratio_sum ";
  const double sum = std::stod(text.substr(text.find(name) + name.size()));
  const double predicted_us =
      std::chrono::duration<double, std::micro>(sliced.job()->predicted()).count();
  EXPECT_NEAR(sum, predicted_us / 30 + 1.0 / 1000, 1e-6);
}

}  // namespace
}  // namespace attnd::server
