// Two real GPUs behind one dispatcher. Skipped, saying why, where there are fewer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/executor/cuda_fault.h"
#include "server/executor/cuda_runtime.h"
#include "server/executor/dispatcher.h"
#include "tests/fakes/attention_requests.h"
#include "tests/fakes/requests.h"
#include "tests/gpu/expect.h"
#include "tests/gpu/gpu.h"

namespace attnd::server {
namespace {

using fakes::AttentionSpec;
using testing::Served;

// S19's kind, on whatever GPUs there are: one that does not exist is named.
TEST(CudaDevicesGpuTest, S19AGpuThatDoesNotExistIsNamed) {
  const absl::StatusOr<int> gpus = CountCudaDevices();
  if (!gpus.ok()) GTEST_SKIP() << gpus.status();
  const std::string absent = "cuda:" + std::to_string(*gpus);
  DeviceOptions options;
  options.devices = "cuda:0," + absent;
  const absl::Status status = CreateDevices(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(absent));
  EXPECT_FALSE(OpenCuda(*gpus).ok());
}

class TwoGpusTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<int> gpus = CountCudaDevices();
    if (!gpus.ok()) GTEST_SKIP() << gpus.status();
    if (*gpus < 2) GTEST_SKIP() << "needs two GPUs, there is " << *gpus;
    Start({"", ""});
  }
  void TearDown() override { Stop(); }

  // With a fault for each, see cuda_fault.h.
  void Start(const std::vector<std::string>& faults, const SchedulerOptions& options = {}) {
    Stop();
    std::vector<Lane> lanes;
    for (int i = 0; i < 2; ++i) {
      absl::StatusOr<Gpu> gpu = OpenGpu(i, "", "");
      ASSERT_TRUE(gpu.ok()) << gpu.status();
      cuda_[i] = *WithFault(std::move(gpu->cuda), faults[i]);
      if (pool_ == nullptr) pool_ = testing::PinnedPool(cuda_[i], int64_t{4} << 30);
      auto device = MakeCudaDevice(cuda_[i], std::move(gpu->backends), gpu->description, {});
      ASSERT_TRUE(device.ok()) << device.status();
      devices_[i] = *std::move(device);
      served_[i] = std::make_unique<Served>(devices_[i].get(), pool_.get(), options);
      lanes.push_back({devices_[i].get(), &served_[i]->scheduler()});
    }
    dispatcher_ = std::make_unique<Dispatcher>(lanes, &clock_);
  }
  void Stop() {
    for (auto& served : served_) {
      if (served != nullptr) served->Drain();
    }
    probes_.clear();
    dispatcher_.reset();
    for (int i = 0; i < 2; ++i) {
      served_[i].reset();
      devices_[i].reset();
    }
  }

  // A request for SubmitAll(): drawing its numbers takes longer than computing.
  fakes::Probe& Add(const AttentionSpec& spec, uint64_t seed = 1) {
    probes_.push_back(std::make_unique<fakes::Probe>(fakes::MakeRequest(*pool_, spec, seed)));
    return *probes_.back();
  }
  void SubmitAll() {
    for (const auto& probe : probes_) {
      const absl::Status status = dispatcher_->Submit(probe->job(), Duration::zero());
      if (!status.ok()) probe->job()->Finish(status, Stage::kQueue);
    }
  }
  // Of those that were answered, by device.
  std::map<std::string, int> Answered() {
    std::map<std::string, int> answered;
    for (const auto& probe : probes_) {
      if (probe->status().ok()) ++answered[probe->answer().device];
    }
    return answered;
  }

  SteadyClock clock_;
  std::shared_ptr<Cuda> cuda_[2];
  std::unique_ptr<BufferPool> pool_;
  std::unique_ptr<Device> devices_[2];
  std::unique_ptr<Served> served_[2];
  std::unique_ptr<Dispatcher> dispatcher_;
  std::vector<std::unique_ptr<fakes::Probe>> probes_;
};

TEST_F(TwoGpusTest, BothServeTheSameBits) {
  const kernels::DType dtypes[] = {kernels::DType::kF32, kernels::DType::kF16,
                                   kernels::DType::kBF16};
  std::map<int, fakes::Probe*> first;  // of each problem
  for (int i = 0; i < 120; ++i) {
    const int problem = i % 12;
    AttentionSpec spec = {.dtype = dtypes[problem % 3],
                          .batch = 2,
                          .q_heads = 8,
                          .kv_heads = 4,
                          .q_len = 200 + problem,
                          .kv_len = 300,
                          .head_dim = problem % 2 == 0 ? 128 : 64,
                          .lse = true};
    if (problem % 4 == 0) spec.mask.causal.alignment = kernels::Causal::kBottomRight;
    fakes::Probe& probe = Add(spec, problem);
    first.try_emplace(problem, &probe);
  }
  SubmitAll();
  const std::map<std::string, int> answered = Answered();
  EXPECT_EQ(answered.size(), 2u) << "both serve";
  int total = 0;
  for (const auto& [device, count] : answered) total += count;
  EXPECT_EQ(total, 120);
  for (auto& [problem, probe] : first) {
    const Answer& answer = probe->answer();
    testing::ExpectRight(probe->job()->request(), answer.o, answer.lse);
  }
  for (size_t i = 0; i < probes_.size(); ++i) {
    const Answer& a = probes_[i]->answer();
    const Answer& b = first.at(static_cast<int>(i) % 12)->answer();
    ASSERT_EQ(std::memcmp(a.o.data(), b.o.data(), a.o.size_bytes()), 0) << i << a.device;
    ASSERT_EQ(std::memcmp(a.lse.data(), b.lse.data(), a.lse.size_bytes()), 0) << i << a.device;
  }
}

TEST_F(TwoGpusTest, SmallRequestsGoBesideALargeOne) {
  const AttentionSpec small = {.dtype = kernels::DType::kBF16,
                               .q_heads = 8,
                               .kv_heads = 8,
                               .q_len = 128,
                               .kv_len = 128,
                               .head_dim = 128};
  AttentionSpec large = small;
  large.q_len = large.kv_len = 32768;  // tens of milliseconds
  fakes::Probe& long_one = Add(large);
  for (int i = 0; i < 50; ++i) Add(small);
  SubmitAll();
  EXPECT_EQ(long_one.times_ended(), 0) << "or this says nothing";
  ASSERT_TRUE(long_one.status().ok()) << long_one.status();
  EXPECT_EQ(Answered(), (std::map<std::string, int>{{"cuda:0", 1}, {"cuda:1", 50}}));
}

// What one GPU has lost ends there; what the other has goes on. The server then leaves.
TEST_F(TwoGpusTest, AFaultOfOneLosesNothingOfTheOther) {
  Start({"", "cuda_sticky_after:40"}, {.max_batch_problems = 1});
  const AttentionSpec spec = {.q_len = 100, .kv_len = 100, .head_dim = 128};
  for (int i = 0; i < 200; ++i) Add(spec);
  SubmitAll();
  int internal = 0;
  for (const auto& probe : probes_) {
    const absl::Status& status = probe->status();
    internal += absl::IsInternal(status);
    if (!status.ok() && !absl::IsInternal(status)) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("cuda:1"));
    }
  }
  EXPECT_EQ(internal, 1);
  EXPECT_GE(Answered()["cuda:0"], 20);
  for (auto& served : served_) served->Drain();
  EXPECT_TRUE(served_[0]->lost().ok()) << served_[0]->lost();
  EXPECT_EQ(served_[1]->lost().code(), absl::StatusCode::kInternal);
}

TEST_F(TwoGpusTest, MemoryIsFlatOnBoth) {
  std::map<std::string, int> answered;
  const auto call_many = [&](int calls) {
    for (int i = 0; i < calls; ++i) {
      Add({.dtype = kernels::DType::kBF16,
           .q_heads = 2,
           .kv_heads = 1,
           .q_len = 1 + i % 20,
           .kv_len = 1 + i % 19,
           .head_dim = 128,
           .lse = i % 2 == 0});
      if (i % 16 != 15) continue;
      SubmitAll();
      for (const auto& [device, count] : Answered()) answered[device] += count;
      probes_.clear();
    }
  };
  call_many(1600);
  const int64_t rss_bytes = testing::RssBytes();
  int64_t free_bytes[2];
  for (int i = 0; i < 2; ++i) free_bytes[i] = *cuda_[i]->FreeDeviceBytes();
  call_many(16000);
  EXPECT_LE(testing::RssBytes(), rss_bytes + (4 << 20));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(*cuda_[i]->FreeDeviceBytes(), free_bytes[i]) << i;
    EXPECT_GT(answered["cuda:" + std::to_string(i)], 1000) << i;
  }
}

}  // namespace
}  // namespace attnd::server
