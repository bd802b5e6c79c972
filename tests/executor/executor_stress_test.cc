// Callers that submit, cancel and run out of time, two executors, a pool that is too small and a
// device that sometimes fails, on the real clock: every call ends exactly once, whatever happens.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "server/executor/executor.h"
#include "tests/fakes/fake_device.h"
#include "tests/fakes/requests.h"

namespace attnd::server {
namespace {

class Service {
 public:
  explicit Service(int64_t pool_bytes)
      : pool_(pool_bytes),
        scheduler_(std::make_unique<Scheduler>(
            SchedulerOptions{.max_queue_requests = 128, .max_batch_problems = 8}, &clock_,
            &metrics_)) {
    devices_[1].PassSometimes();
    for (fakes::FakeDevice& device : devices_) {
      executors_.push_back(std::make_unique<Executor>(
          ExecutorOptions{.on_device_lost = [this](const absl::Status&) { ++lost; }},
          scheduler_.get(), &device, &pool_, &clock_, &metrics_));
    }
  }

  void Call(std::mt19937_64& random) {
    const TimePoint now = clock_.Now();
    const auto job = std::make_shared<Job>(
        fakes::MakeRequest({.priority = static_cast<int>(random() % 10),
                            .arrival = now,
                            .deadline = random() % 2 ? kNever : now + microseconds(random() % 2000),
                            .answer_bytes = static_cast<int64_t>(random() % 3000),
                            .lse_bytes = static_cast<int64_t>(random() % 100)}),
        [this](Job&, absl::StatusOr<Answer> answer, Stage stage) {
          metrics_.CountFinished(answer.status().code(), stage);
          if (answer.ok()) ++answered;
          if (absl::IsInternal(answer.status())) ++internal;
        });
    metrics_.CountReceived("unary", 0);
    const absl::Status refused = scheduler_->Submit(job);
    if (!refused.ok()) job->Finish(refused, Stage::kQueue);
    if (random() % 3 == 0) scheduler_->Cancel(job);
  }

  void Storm(int threads, int calls_each) {
    std::vector<std::thread> callers;
    for (int t = 0; t < threads; ++t) {
      callers.emplace_back([this, t, calls_each] {
        std::mt19937_64 random(static_cast<uint64_t>(t));
        for (int i = 0; i < calls_each; ++i) Call(random);
      });
    }
    for (std::thread& caller : callers) caller.join();
  }

  // Returns when every thread that ends calls has ended.
  void Drain() {
    scheduler_->Drain();
    executors_.clear();
    EXPECT_EQ(scheduler_->queued_requests(), 0);
    EXPECT_EQ(scheduler_->queued_bytes(), 0);
    scheduler_.reset();
  }

  std::atomic<int> answered{0};
  std::atomic<int> internal{0};
  std::atomic<int> lost{0};
  fakes::FakeDevice devices_[2] = {fakes::FakeDevice(1), fakes::FakeDevice(3)};
  SteadyClock clock_;
  Metrics metrics_;
  BufferPool pool_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<Executor>> executors_;
};

TEST(ExecutorStress, EveryCallEndsExactlyOnceAndTheCountersBalance) {
  constexpr int kThreads = 3;
  constexpr int kCallsEach = 3000;
  Service service(12000);
  service.devices_[0].OnStage(Stage::kRun, [&, calls = 0](auto&) mutable {
    const bool fails = ++calls % 7 == 0;
    service.devices_[0].Fail(
        Stage::kRun, fails ? absl::FailedPreconditionError("a bad batch") : absl::OkStatus());
  });
  service.Storm(kThreads, kCallsEach);
  service.Drain();
  EXPECT_EQ(service.metrics_.received(), kThreads * kCallsEach);
  EXPECT_EQ(service.metrics_.finished(), kThreads * kCallsEach);
  EXPECT_GT(service.answered, 0);
  EXPECT_EQ(service.internal, 0) << "a call was lost";
  EXPECT_EQ(service.lost, 0);
  EXPECT_EQ(service.pool_.used_bytes(), 0);
}

TEST(ExecutorStress, ALostDeviceInAStormLosesNoCall) {
  constexpr int kThreads = 3;
  constexpr int kCallsEach = 500;
  for (int round = 0; round < 5; ++round) {
    Service service(1 << 20);
    service.devices_[0].OnStage(Stage::kDownload, [&, calls = 0](auto&) mutable {
      if (++calls == 5) service.devices_[0].Fail(Stage::kDownload, absl::InternalError("lost"));
    });
    service.Storm(kThreads, kCallsEach);
    service.Drain();
    ASSERT_EQ(service.metrics_.finished(), kThreads * kCallsEach);
    ASSERT_LE(service.lost, 1);
    ASSERT_EQ(service.pool_.used_bytes(), 0);
  }
}

}  // namespace
}  // namespace attnd::server
