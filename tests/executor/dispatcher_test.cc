#include "server/executor/dispatcher.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/executor/devices.h"
#include "tests/fakes/fake_clock.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/requests.h"

namespace attnd::server {
namespace {

using std::chrono::milliseconds;

// Two devices whose executors are the test: batches are taken and finished by hand.
class DispatcherTest : public ::testing::Test {
 protected:
  // Devices of one name are of a kind.
  explicit DispatcherTest(const std::string& second = "another")
      : devices_{PickyDevice("one"), PickyDevice(second)} {}

  // A device that may refuse problems.
  class PickyDevice final : public Device {
   public:
    explicit PickyDevice(const std::string& name) { description_.name = name; }
    const DeviceDescription& Describe() const override { return description_; }
    absl::Status Supports(const kernels::AttentionProblem& problem) const override {
      if (problem.head_dim <= max_head_dim) return absl::OkStatus();
      return absl::UnimplementedError("too wide");
    }
    absl::Status Begin(Stage, RunningBatch&) override { return absl::OkStatus(); }
    int64_t max_head_dim = 256;

   private:
    DeviceDescription description_;
  };

  ~DispatcherTest() override {
    for (auto& scheduler : schedulers_) scheduler.Stop(absl::UnavailableError("the end"));
  }

  // Of work about len^2.
  fakes::Probe& Submit(int64_t len, int64_t head_dim = 64) {
    probes_.push_back(
        std::make_unique<fakes::Probe>(fakes::MakeAttention(pool_, len, head_dim, 0, 0, 0)));
    submitted_ = dispatcher_.Submit(probes_.back()->job(), Duration::zero());
    return *probes_.back();
  }
  std::pair<int64_t, int64_t> queued() const {
    return {schedulers_[0].queued_requests(), schedulers_[1].queued_requests()};
  }
  void FinishAllOf(int lane, milliseconds after) {
    clock_.Advance(after);
    const absl::optional<Batch> batch = schedulers_[lane].NextBatchBefore(TimePoint::min());
    ASSERT_TRUE(batch.has_value());
    for (const JobPtr& job : batch->jobs) job->Finish(Answer(), Stage::kDone);
  }

  fakes::FakeClock clock_;
  Metrics metrics_;
  BufferPool pool_{int64_t{256} << 20};
  PickyDevice devices_[2];
  std::vector<std::unique_ptr<fakes::Probe>> probes_;
  Scheduler schedulers_[2] = {{{}, &clock_, &metrics_}, {{}, &clock_, &metrics_}};
  Dispatcher dispatcher_{{{&devices_[0], &schedulers_[0]}, {&devices_[1], &schedulers_[1]}},
                         &clock_};
  absl::Status submitted_;
};

TEST_F(DispatcherTest, GoesWhereLessWaits) {
  Submit(400);
  EXPECT_EQ(queued(), std::make_pair(int64_t{1}, int64_t{0}));
  Submit(100);
  Submit(100);
  EXPECT_EQ(queued(), std::make_pair(int64_t{1}, int64_t{2})) << "two small beside one large";
}

TEST_F(DispatcherTest, GoesToTheFasterDeviceThoughMoreWaitsThere) {
  Submit(400);
  Submit(400);
  FinishAllOf(0, milliseconds(100));
  FinishAllOf(1, milliseconds(900));  // 1000 ms in all
  for (int i = 0; i < 8; ++i) Submit(400);
  EXPECT_EQ(queued(), std::make_pair(int64_t{8}, int64_t{0})) << "ten times as fast";
  for (int i = 0; i < 3; ++i) Submit(400);
  EXPECT_EQ(queued().second, 1);
}

class AlikeDispatcherTest : public DispatcherTest {
 protected:
  AlikeDispatcherTest() : DispatcherTest("one") {}
};

TEST_F(AlikeDispatcherTest, OneThatHadLittleToDoIsNotTakenToBeSlow) {
  Submit(400);
  Submit(400);
  FinishAllOf(0, milliseconds(100));
  FinishAllOf(1, milliseconds(900));
  for (int i = 0; i < 8; ++i) Submit(400);
  EXPECT_EQ(queued(), std::make_pair(int64_t{4}, int64_t{4}));
}

TEST_F(DispatcherTest, WhatEndsCountsNoMoreHoweverItEnds) {
  fakes::Probe& large = Submit(400);
  dispatcher_.Cancel(large.job());
  EXPECT_EQ(large.status().code(), absl::StatusCode::kCancelled);
  Submit(10);
  EXPECT_EQ(queued(), std::make_pair(int64_t{0}, int64_t{1})) << "of two idle ones the other";
  Submit(10);
  EXPECT_EQ(queued(), std::make_pair(int64_t{1}, int64_t{1}));
}

TEST_F(DispatcherTest, GoesToTheGpuThatHasItsTensors) {
  for (int i = 0; i < 3; ++i) {
    std::unique_ptr<Request> request = fakes::MakeAttention(pool_, 10, 64, 0, 0, 0);
    request->gpu.device = 1;
    probes_.push_back(std::make_unique<fakes::Probe>(std::move(request)));
    ASSERT_TRUE(dispatcher_.Submit(probes_.back()->job(), Duration::zero()).ok());
  }
  EXPECT_EQ(queued(), std::make_pair(int64_t{0}, int64_t{3}));
}

TEST_F(DispatcherTest, GoesWhereItIsSupported) {
  devices_[0].max_head_dim = 64;
  Submit(10, 128);
  Submit(10, 128);
  EXPECT_EQ(queued(), std::make_pair(int64_t{0}, int64_t{2}));
  devices_[1].max_head_dim = 64;
  fakes::Probe& wide = Submit(10, 128);
  EXPECT_EQ(submitted_.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(dispatcher_.Supports(wide.job()->request().problems[0].problem).code(),
            absl::StatusCode::kUnimplemented);
  wide.job()->Finish(submitted_, Stage::kQueue);
}

TEST(RateEstimateTest, IsAMeanOverStretches) {
  RateEstimate rate;
  const TimePoint start{};
  rate.Busy(start);
  EXPECT_EQ(rate.per_second(), 0);
  rate.Done(start + milliseconds(10), 5);
  EXPECT_DOUBLE_EQ(rate.per_second(), 500);
  rate.Done(start + milliseconds(10), 5);  // of the same batch: with the next sample
  EXPECT_DOUBLE_EQ(rate.per_second(), 500);
  rate.Done(start + milliseconds(20), 8);
  EXPECT_DOUBLE_EQ(rate.per_second(), 500 + (1300 - 500) / 8.0);
}

// S19's kind: a device that does not exist is named, and so is the number of those that do.
TEST(ResolveDevices, S19ADeviceThatDoesNotExistIsNamed) {
  const absl::Status status = ResolveDevices("cuda:0,cuda:3", "", 2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "device cuda:3 does not exist; this process sees 2 GPUs");
  const absl::Status none =
      ResolveDevices("cuda:0", "", absl::FailedPreconditionError("there is no driver")).status();
  EXPECT_EQ(none, absl::FailedPreconditionError("device cuda:0: there is no driver"));
}

TEST(ResolveDevices, Lists) {
  const absl::StatusOr<int> no_gpu = absl::FailedPreconditionError("none");
  const std::vector<int> cpu = {kCpuOrdinal};
  EXPECT_EQ(*ResolveDevices("auto", "", no_gpu), cpu);
  EXPECT_EQ(*ResolveDevices("auto", "", 3), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(*ResolveDevices("auto", "cpu_portable", 3), cpu);
  EXPECT_EQ(*ResolveDevices("cpu", "", 3), cpu);
  EXPECT_EQ(*ResolveDevices("cuda:1,cpu", "", 3), (std::vector<int>{1, kCpuOrdinal}));
  for (const char* bad : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cpu,", "cuda:1,cuda:1"}) {
    EXPECT_EQ(ResolveDevices(bad, "", 3).status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
  }
}

}  // namespace
}  // namespace attnd::server
