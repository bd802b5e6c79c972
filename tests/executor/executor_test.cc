// The executor with a puppet for a device, on a clock that the test moves.
#include "server/executor/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/requests.h"

namespace attnd::server {
namespace {

using fakes::Gate;
using fakes::Probe;
using fakes::RequestSpec;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Stage kDeviceStages[] = {Stage::kUpload, Stage::kRun, Stage::kDownload};

class ExecutorTest : public ::testing::Test {
 protected:
  ~ExecutorTest() override {
    if (scheduler_ != nullptr) scheduler_->Drain();
    executor_.reset();
    for (const std::unique_ptr<Probe>& probe : probes_) EXPECT_EQ(probe->times_ended(), 1);
  }

  void MakeScheduler(const SchedulerOptions& options = {}) {
    scheduler_ = std::make_unique<Scheduler>(options, &clock_, &metrics_);
  }
  void StartExecutor() {
    ExecutorOptions options;
    options.on_device_lost = [this](const absl::Status& status) { lost_.push_back(status); };
    executor_ =
        std::make_unique<Executor>(options, scheduler_.get(), &device_, &pool_, &clock_, &metrics_);
  }
  // Waits until the executor has ended everything.
  void DrainExecutor() {
    scheduler_->Drain();
    executor_.reset();
  }

  Probe& Submit(RequestSpec spec) {
    spec.arrival = clock_.Now();
    probes_.push_back(std::make_unique<Probe>(spec));
    EXPECT_TRUE(scheduler_->Submit(probes_.back()->job()).ok());
    return *probes_.back();
  }

  static constexpr int64_t kPoolBytes = 1 << 16;

  fakes::FakeClock clock_;
  Metrics metrics_;
  BufferPool pool_{kPoolBytes};
  fakes::FakeDevice device_;
  std::vector<absl::Status> lost_;
  std::vector<std::unique_ptr<Probe>> probes_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Executor> executor_;
};

TEST_F(ExecutorTest, AnswersCarryTheirTimesAndTheirBatch) {
  MakeScheduler();
  Probe& a = Submit({.id = "a", .answer_bytes = 100, .lse_bytes = 8});
  clock_.Advance(microseconds(7));
  Probe& b = Submit({.id = "b", .answer_bytes = 200});
  clock_.Advance(microseconds(3));
  device_.OnStage(Stage::kUpload, [&](auto&) { clock_.Advance(microseconds(11)); });
  device_.OnStage(Stage::kRun, [&](auto&) { clock_.Advance(microseconds(13)); });
  device_.OnStage(Stage::kDownload, [&](auto&) { clock_.Advance(microseconds(17)); });
  StartExecutor();
  ASSERT_TRUE(a.status().ok()) << a.status();
  ASSERT_TRUE(b.status().ok()) << b.status();
  EXPECT_EQ(a.stage(), Stage::kDone);
  const Answer& answer = a.answer();
  EXPECT_EQ(answer.timing.queue_us, 10);
  EXPECT_EQ(b.answer().timing.queue_us, 3);
  EXPECT_EQ(answer.timing.upload_us, 11);
  EXPECT_EQ(answer.timing.run_us, 13);
  EXPECT_EQ(answer.timing.download_us, 17);
  EXPECT_EQ(answer.timing.total_us, 51);
  EXPECT_EQ(b.answer().timing.total_us, 44);
  EXPECT_EQ(answer.o.size_bytes(), 100);
  EXPECT_EQ(answer.lse.size_bytes(), 8);
  EXPECT_EQ(b.answer().lse.size_bytes(), 0);
  EXPECT_EQ(answer.backend, "fake_backend");
  EXPECT_EQ(answer.device, "fake");
  EXPECT_EQ(answer.kernel, "attn_fwd_f32_d64_full_fake");
  EXPECT_EQ(answer.batch_size, 2);
  EXPECT_EQ(answer.batch_id, b.answer().batch_id);
  EXPECT_THAT(device_.log(), ElementsAre("upload a,b", "run a,b", "download a,b"));
  DrainExecutor();
  const std::string text = metrics_.Serialize();
  EXPECT_THAT(text, HasSubstr("attnd_batch_requests_bucket{le=\"2\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("attnd_predicted_over_actual_ratio_count 1\n"));
  EXPECT_THAT(text, HasSubstr("attnd_kernel_run_seconds_count{kernel="
                              "\"attn_fwd_f32_d64_full_fake\"} 1\n"));
}

// S38: short beside long: batches run in the queue's order, and each job gets its own answer.
TEST_F(ExecutorTest, S38BatchesRunInOrderAndAnswersAreTheirOwn) {
  MakeScheduler({.max_batch_problems = 2});
  device_.OnStage(Stage::kRun, [](std::vector<RunningJob>& batch) {
    for (RunningJob& running : batch) {
      std::fill_n(running.o.data(), running.o.size_bytes(),
                  static_cast<unsigned char>(running.job->request().request_id[0]));
    }
  });
  std::vector<Probe*> probes;
  for (const char* id : {"a", "b", "c", "d", "e"}) {
    probes.push_back(&Submit({.id = id, .answer_bytes = id[0] % 2 == 0 ? 10 : 5000}));
  }
  probes.push_back(&Submit({.id = "first", .priority = 1}));
  StartExecutor();
  uint64_t last_batch_id = 0;
  for (Probe* probe : probes) {
    ASSERT_TRUE(probe->status().ok());
    const Answer& answer = probe->answer();
    const auto own = static_cast<unsigned char>(probe->job()->request().request_id[0]);
    for (int64_t i = 0; i < answer.o.size_bytes(); ++i) ASSERT_EQ(answer.o.data()[i], own);
    last_batch_id = std::max(last_batch_id, answer.batch_id);
  }
  EXPECT_EQ(last_batch_id, 3u);
  EXPECT_THAT(device_.log(),
              ElementsAre("upload first,a", "run first,a", "download first,a", "upload b,c",
                          "run b,c", "download b,c", "upload d,e", "run d,e", "download d,e"));
}

TEST_F(ExecutorTest, CancelledBetweenStagesEndsThereAndTheRestGoesOn) {
  struct Row {
    Stage during;
    std::vector<std::string> log;
  };
  const Row rows[] = {{Stage::kUpload, {"upload gone,stays", "run stays", "download stays"}},
                      {Stage::kRun, {"upload gone,stays", "run gone,stays", "download stays"}}};
  for (const Row& row : rows) {
    fakes::FakeDevice device;
    MakeScheduler();
    Probe& gone = Submit({.id = "gone"});
    Probe& stays = Submit({.id = "stays"});
    device.OnStage(row.during, [&](auto&) { scheduler_->Cancel(gone.job()); });
    Executor executor({}, scheduler_.get(), &device, &pool_, &clock_, &metrics_);
    EXPECT_EQ(gone.status().code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(gone.stage(), row.during);
    ASSERT_TRUE(stays.status().ok());
    EXPECT_EQ(stays.answer().batch_size, row.during == Stage::kUpload ? 1 : 2);
    EXPECT_EQ(device.log(), row.log);
    scheduler_->Drain();
  }
}

TEST_F(ExecutorTest, ExpiredBetweenStagesEndsThereAndTheRestGoesOn) {
  for (const Stage during : {Stage::kUpload, Stage::kRun}) {
    fakes::FakeDevice device;
    MakeScheduler();
    Probe& gone = Submit({.id = "gone", .deadline = clock_.Now() + seconds(1)});
    Probe& stays = Submit({.id = "stays", .deadline = clock_.Now() + seconds(2)});
    device.OnStage(during, [&](auto&) { clock_.Advance(seconds(1)); });
    Executor executor({}, scheduler_.get(), &device, &pool_, &clock_, &metrics_);
    EXPECT_EQ(gone.status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(gone.status().message()), HasSubstr(StageName(during)));
    EXPECT_EQ(gone.stage(), during);
    EXPECT_TRUE(stays.status().ok());
    scheduler_->Drain();
  }
}

TEST_F(ExecutorTest, ABatchThatNobodyWantsAnyMoreIsNotRun) {
  MakeScheduler();
  Probe& a = Submit({.id = "a"});
  device_.OnStage(Stage::kUpload, [&](auto&) { scheduler_->Cancel(a.job()); });
  StartExecutor();
  EXPECT_EQ(a.status().code(), absl::StatusCode::kCancelled);
  DrainExecutor();
  EXPECT_THAT(device_.log(), ElementsAre("upload a"));
  EXPECT_EQ(pool_.used_bytes(), 0);
}

TEST_F(ExecutorTest, AStageThatFailsEndsItsBatchAndTheDeviceGoesOn) {
  MakeScheduler({.max_batch_problems = 2});
  StartExecutor();
  for (const Stage stage : kDeviceStages) {
    const absl::Status failure = absl::FailedPreconditionError("no such kernel");
    device_.Fail(stage, failure);
    Probe& a = Submit({.id = "a"});
    EXPECT_EQ(a.status(), failure);
    EXPECT_EQ(a.stage(), stage);
    device_.StopFailing();
    EXPECT_TRUE(Submit({.id = "next"}).status().ok());
  }
  DrainExecutor();
  EXPECT_THAT(lost_, IsEmpty());
  EXPECT_EQ(pool_.used_bytes(), 3 * pool_.BlockBytes(64)) << "of the three answers";
}

TEST_F(ExecutorTest, InternalLosesTheDeviceOnceAndTheQueueWithIt) {
  for (const Stage stage : kDeviceStages) {
    fakes::FakeDevice device;
    MakeScheduler({.max_batch_problems = 2});
    std::vector<absl::Status> lost;
    std::vector<Probe*> running = {&Submit({.id = "a"}), &Submit({.id = "b"})};
    std::vector<Probe*> queued = {&Submit({.id = "c"}), &Submit({.id = "d"}), &Submit({.id = "e"})};
    device.Fail(stage, absl::InternalError("fell off the bus"));
    {
      Executor executor(
          {.on_device_lost = [&](const absl::Status& status) { lost.push_back(status); }},
          scheduler_.get(), &device, &pool_, &clock_, &metrics_);
      for (Probe* probe : running) {
        EXPECT_EQ(probe->status(), absl::InternalError("fell off the bus"));
        EXPECT_EQ(probe->stage(), stage);
      }
      for (Probe* probe : queued) {
        EXPECT_EQ(probe->status().code(), absl::StatusCode::kUnavailable);
        EXPECT_THAT(std::string(probe->status().message()), HasSubstr("fell off the bus"));
        EXPECT_EQ(probe->stage(), Stage::kQueue);
      }
    }
    EXPECT_THAT(lost, ElementsAre(absl::InternalError("fell off the bus")));
    Probe late(RequestSpec{});
    EXPECT_EQ(scheduler_->Submit(late.job()).code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(pool_.used_bytes(), 0);
}

TEST_F(ExecutorTest, AnAnswerWaitsForMemoryUntilSomethingIsGivenBack) {
  MakeScheduler();
  Buffer hog = *pool_.Allocate(kPoolBytes);
  Probe& a = Submit({.id = "a", .answer_bytes = 1000, .lse_bytes = 10});
  StartExecutor();
  Probe& expired = Submit({.id = "expired", .deadline = clock_.Now() + milliseconds(1)});
  clock_.Advance(milliseconds(1));
  EXPECT_EQ(expired.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(expired.stage(), Stage::kQueue);
  EXPECT_EQ(a.times_ended(), 0);
  hog = Buffer();
  EXPECT_TRUE(a.status().ok());
  EXPECT_THAT(device_.log(), ElementsAre("upload a", "run a", "download a"));
}

TEST_F(ExecutorTest, ACancelledJobDoesNotWaitForMemory) {
  MakeScheduler();
  const Buffer hog = *pool_.Allocate(kPoolBytes);
  Probe& a = Submit({.id = "a"});
  StartExecutor();
  scheduler_->Cancel(a.job());
  EXPECT_EQ(a.status().code(), absl::StatusCode::kCancelled);
  DrainExecutor();  // nor does the executor
  EXPECT_THAT(device_.log(), IsEmpty());
}

TEST_F(ExecutorTest, TheExecutorEndsThoughAJobWaitsForMemory) {
  MakeScheduler();
  const Buffer hog = *pool_.Allocate(kPoolBytes);
  Probe& a = Submit({.id = "a"});
  StartExecutor();
  scheduler_->Stop(absl::UnavailableError("stopped"));
  EXPECT_EQ(a.status(), absl::UnavailableError("stopped"));
  executor_.reset();
}

TEST_F(ExecutorTest, WhereMemoryIsShortThoseThatHaveItRunAndNobodyIsPassed) {
  MakeScheduler();
  // Two thirds, two thirds, and one that would fit beside either.
  Probe& first = Submit({.id = "first", .answer_bytes = kPoolBytes * 5 / 8});
  Probe& second = Submit({.id = "second", .answer_bytes = kPoolBytes * 5 / 8});
  Probe& small = Submit({.id = "small", .answer_bytes = 64});
  StartExecutor();
  ASSERT_TRUE(first.status().ok());
  EXPECT_EQ(second.times_ended() + small.times_ended(), 0);
  first.answer() = Answer();  // sent
  ASSERT_TRUE(second.status().ok());
  ASSERT_TRUE(small.status().ok());
  EXPECT_EQ(first.answer().batch_size, 0);
  EXPECT_EQ(second.answer().batch_id, small.answer().batch_id);
  EXPECT_THAT(device_.log(),
              ElementsAre("upload first", "run first", "download first", "upload second,small",
                          "run second,small", "download second,small"));
}

// Otherwise the executor would take its own giving back for a reason to try again, for ever.
TEST_F(ExecutorTest, AJobWithoutRoomForBothTensorsTakesNeither) {
  MakeScheduler();
  const Buffer hog = *pool_.Allocate(kPoolBytes / 2);
  Probe& fits = Submit({.id = "fits"});
  Probe& waits =
      Submit({.id = "waits", .answer_bytes = kPoolBytes / 4, .lse_bytes = kPoolBytes * 3 / 8});
  StartExecutor();
  EXPECT_TRUE(fits.status().ok());
  scheduler_->Cancel(waits.job());
  EXPECT_EQ(waits.status().code(), absl::StatusCode::kCancelled);
  DrainExecutor();
  EXPECT_EQ(pool_.releases(), 0u);
}

TEST_F(ExecutorTest, AnAnswerThatCanNeverFitIsToldSo) {
  MakeScheduler();
  // Each alone would fit; O and LSE together never do.
  Probe& never =
      Submit({.id = "never", .answer_bytes = kPoolBytes * 3 / 4, .lse_bytes = kPoolBytes * 3 / 4});
  Probe& huge = Submit({.id = "huge", .answer_bytes = kPoolBytes * 2});
  Probe& good = Submit({.id = "good"});
  StartExecutor();
  for (Probe* probe : {&never, &huge}) {
    EXPECT_EQ(probe->status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(RetryPushbackMs(probe->status()).value_or(0), -1);
    EXPECT_THAT(std::string(probe->status().message()), HasSubstr(std::to_string(kPoolBytes)));
  }
  EXPECT_TRUE(good.status().ok());
}

TEST_F(ExecutorTest, ItsOwnPayloadCountsTowardsWhatCanNeverFit) {
  MakeScheduler();
  // Payload 3/4 of the pool, answer 1/4 and LSE: never, though the answer alone would fit.
  std::unique_ptr<Request> request = fakes::MakeAttention(pool_, 64, 64, 0, 0, 0);
  probes_.push_back(std::make_unique<Probe>(std::move(request)));
  ASSERT_TRUE(scheduler_->Submit(probes_.back()->job()).ok());
  StartExecutor();
  EXPECT_EQ(probes_.back()->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryPushbackMs(probes_.back()->status()).value_or(0), -1);
}

// With several batches under way; each is named after its first request.
class PipelineTest : public ExecutorTest {
 protected:
  void Start(int64_t max_batch_problems = 1) {
    MakeScheduler({.max_batch_problems = max_batch_problems});
    StartExecutor();
  }
  void StartExecutor() {
    executor_ = std::make_unique<Executor>(
        ExecutorOptions{[this](const absl::Status& status) { lost_.push_back(status); }},
        scheduler_.get(), &gpu_, &pool_, &clock_, &metrics_);
  }

  fakes::FakeDevice gpu_{3};
};

TEST_F(PipelineTest, ThreeBatchesAreUnderWayAndTheFourthWaits) {
  Start();
  for (const char* id : {"a", "b", "c", "d"}) Submit({.id = id});
  gpu_.WaitForLog(3);
  gpu_.WaitForLooks(20);
  EXPECT_THAT(gpu_.log(), ElementsAre("upload a", "upload b", "upload c"));
  gpu_.Pass("b");
  gpu_.WaitForLog(4);
  EXPECT_EQ(gpu_.log().back(), "run b") << "each goes on when it can";
  gpu_.Pass("a", 3);
  EXPECT_TRUE(probes_[0]->status().ok());
  gpu_.WaitForLog(7);
  EXPECT_EQ(gpu_.log().back(), "upload d");
  for (const char* id : {"b", "c", "d"}) gpu_.Pass(id, 3);
  for (const auto& probe : probes_) EXPECT_TRUE(probe->status().ok());
}

TEST_F(PipelineTest, ABatchThatComesWhileAnotherIsUnderWayIsTaken) {
  Start();
  Submit({.id = "a"});
  gpu_.WaitForLog(1);
  gpu_.WaitForLooks(200);  // the executor naps by now
  Submit({.id = "b"});
  gpu_.WaitForLog(2);
  gpu_.Pass("b", 3);
  EXPECT_TRUE(probes_[1]->status().ok());
  gpu_.Pass("a", 3);
  EXPECT_TRUE(probes_[0]->status().ok());
}

TEST_F(PipelineTest, TimesRunUntilAStageIsSeenDone) {
  Start();
  Probe& a = Submit({.id = "a"});
  gpu_.WaitForLog(1);
  const int64_t us[] = {5, 7, 11};
  for (size_t stage = 0; stage < 3; ++stage) {
    clock_.Advance(microseconds(us[stage]));
    gpu_.Pass("a");
    if (stage < 2) gpu_.WaitForLog(stage + 2);
  }
  ASSERT_TRUE(a.status().ok());
  EXPECT_EQ(a.answer().timing.upload_us, 5);
  EXPECT_EQ(a.answer().timing.run_us, 7);
  EXPECT_EQ(a.answer().timing.download_us, 11);
  EXPECT_EQ(a.answer().timing.total_us, 23);
}

TEST_F(PipelineTest, CancelledUnderWayEndsAtTheNextStage) {
  MakeScheduler({.max_batch_problems = 2});
  Probe& gone = Submit({.id = "gone"});
  Probe& stays = Submit({.id = "stays"});
  StartExecutor();
  gpu_.WaitForLog(1);
  scheduler_->Cancel(gone.job());
  gpu_.WaitForLooks(5);
  EXPECT_EQ(gone.times_ended(), 0) << "the stage is using its memory";
  gpu_.Pass("gone");
  EXPECT_EQ(gone.status().code(), absl::StatusCode::kCancelled);
  gpu_.Pass("stays", 2);
  EXPECT_TRUE(stays.status().ok());
  EXPECT_THAT(gpu_.log(), ElementsAre("upload gone,stays", "run stays", "download stays"));
}

TEST_F(PipelineTest, DrainWaitsForWhatIsUnderWay) {
  Start();
  Submit({.id = "a"});
  Submit({.id = "b"});
  gpu_.WaitForLog(2);
  scheduler_->Drain();
  gpu_.WaitForLooks(100);
  gpu_.Pass("a", 3);
  gpu_.Pass("b", 3);
  executor_.reset();
  for (const auto& probe : probes_) EXPECT_TRUE(probe->status().ok());
}

TEST_F(PipelineTest, ALostDeviceEndsItsBatchTheOthersAndTheQueue) {
  Start();
  for (const char* id : {"a", "b", "c", "queued"}) Submit({.id = id});
  gpu_.WaitForLog(3);
  gpu_.FailUnderWay("b", absl::InternalError("fell off the bus"));
  EXPECT_EQ(probes_[1]->status(), absl::InternalError("fell off the bus"));
  for (const size_t other : {0, 2, 3}) {
    EXPECT_EQ(probes_[other]->status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(probes_[other]->status().message()), HasSubstr("fell off the bus"));
  }
  executor_.reset();
  EXPECT_THAT(lost_, ElementsAre(absl::InternalError("fell off the bus")));
}

TEST_F(PipelineTest, WithoutRoomOnTheDeviceARequestWaitsUntilABatchHasEnded) {
  gpu_.Refuse("large", absl::UnavailableError("no room"));
  Start();
  Submit({.id = "a"});
  gpu_.WaitForLog(1);
  Probe& large = Submit({.id = "large"});
  gpu_.WaitForLooks(20);
  EXPECT_EQ(large.times_ended(), 0);
  EXPECT_EQ(scheduler_->queued_requests(), 1) << "where its deadline counts";
  gpu_.Refuse("large", absl::OkStatus());
  gpu_.Pass("a", 3);
  EXPECT_TRUE(probes_[0]->status().ok());
  gpu_.Pass("large", 3);
  EXPECT_TRUE(large.status().ok());
}

TEST_F(PipelineTest, WhatTheDeviceCanNeverHoldIsToldSo) {
  gpu_.Refuse("huge", absl::ResourceExhaustedError("never"));
  Start();
  EXPECT_EQ(Submit({.id = "huge"}).status(), absl::ResourceExhaustedError("never"));
}

TEST_F(PipelineTest, AStageWithoutRoomIsTriedAgain) {
  gpu_.Fail(Stage::kRun, absl::UnavailableError("no workspace"));
  Start();
  Probe& a = Submit({.id = "a"});
  gpu_.Pass("a", 3);
  gpu_.WaitForLog(2);
  EXPECT_EQ(a.times_ended(), 0);
  gpu_.StopFailing();
  clock_.Advance(seconds(1));
  EXPECT_TRUE(a.status().ok());
}

TEST_F(ExecutorTest, DrainFinishesWhatIsQueuedAndEnds) {
  MakeScheduler({.max_batch_problems = 1});
  Gate gate;
  device_.OnStage(Stage::kRun, [&](auto&) { gate.Wait(); });
  std::vector<Probe*> probes;
  for (const char* id : {"a", "b", "c"}) probes.push_back(&Submit({.id = id}));
  StartExecutor();
  scheduler_->Drain();
  gate.Open();
  executor_.reset();
  for (Probe* probe : probes) EXPECT_TRUE(probe->status().ok());
}

}  // namespace
}  // namespace attnd::server
