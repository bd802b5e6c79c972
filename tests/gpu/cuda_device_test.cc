// The GPU device on a GPU. Skipped, saying why, where there is none.
#include "server/executor/cuda_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/executor/cuda_fault.h"
#include "server/executor/cuda_runtime.h"
#include "tests/fakes/attention_requests.h"
#include "tests/fakes/requests.h"
#include "tests/gpu/expect.h"
#include "tests/gpu/gpu.h"

namespace attnd::server {
namespace {

using fakes::AttentionSpec;
using fakes::Layout;
using testing::Served;

constexpr Stage kStages[] = {Stage::kUpload, Stage::kRun, Stage::kDownload};
constexpr SliceSize kTinySlices = {.bytes = 64 << 10, .query_rows = 1};

// Copies that would go together go one by one: compute-sanitizer's initcheck does not see that
// cudaMemcpyBatchAsync writes.
class OneByOne final : public CudaWrapper {
 public:
  using CudaWrapper::CudaWrapper;
  absl::Status CopyAsync(absl::Span<const CudaCopy> copies, kernels::Stream stream) override {
    for (size_t i = 0; i < copies.size(); ++i) {
      const absl::Status status = CudaWrapper::CopyAsync(copies.subspan(i, 1), stream);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
};

class CudaDeviceGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<int> gpus = CountCudaDevices();
    if (!gpus.ok()) GTEST_SKIP() << gpus.status();
    MakeDevice({});
    pool_ = testing::PinnedPool(cuda_, int64_t{1} << 30);
  }

  void MakeDevice(const CudaDeviceOptions& options, const std::string& fault = "") {
    device_.reset();
    absl::StatusOr<Gpu> gpu = OpenGpu(0, "", "");
    ASSERT_TRUE(gpu.ok()) << gpu.status();
    cuda_ = *WithFault(std::move(gpu->cuda), fault);
    if (copies_one_by_one_) cuda_ = std::make_shared<OneByOne>(cuda_);
    auto device = MakeCudaDevice(cuda_, std::move(gpu->backends), gpu->description, options);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }

  RunningJob Running(const AttentionSpec& spec, uint64_t seed = 1) {
    return fakes::MakeRunning(fakes::MakeRequest(*pool_, spec, seed), *pool_);
  }

  void Reserve(RunningBatch& batch) {
    for (RunningJob& running : batch.jobs) {
      const absl::Status status = device_->Reserve(running);
      ASSERT_TRUE(status.ok()) << status;
    }
  }
  void Await(RunningBatch& batch) {
    for (;;) {
      const absl::StatusOr<bool> done = device_->Done(batch);
      ASSERT_TRUE(done.ok()) << done.status();
      if (*done) return;
    }
  }
  void Compute(RunningBatch& batch) {
    Reserve(batch);
    for (const Stage stage : kStages) {
      const absl::Status status = device_->Begin(stage, batch);
      ASSERT_TRUE(status.ok()) << status;
      Await(batch);
    }
  }

  std::vector<AttentionSpec> Specs() {
    std::vector<AttentionSpec> specs;
    for (const Layout layout : {Layout::kBHSD, Layout::kBSHD, Layout::kPacked}) {
      for (const kernels::DType dtype : {kernels::DType::kF32, kernels::DType::kBF16}) {
        for (const int64_t head_dim : {64, 128, 100, 127}) {
          AttentionSpec spec = {.dtype = dtype,
                                .layout = layout,
                                .batch = 3,
                                .q_heads = 6,
                                .kv_heads = 3,
                                .q_len = 70,
                                .kv_len = 150,
                                .head_dim = head_dim};
          const auto add = [&] {
            if (device_->Supports(fakes::MakeRequest(*pool_, spec)->problems[0].problem).ok()) {
              specs.push_back(spec);
            }
          };
          add();
          spec.lse = spec.alibi = true;
          spec.mask.causal.alignment = kernels::Causal::kBottomRight;
          add();
        }
      }
    }
    return specs;
  }

  bool copies_one_by_one_ = false;
  std::shared_ptr<Cuda> cuda_;
  std::unique_ptr<BufferPool> pool_;
  std::unique_ptr<Device> device_;
};

class CudaCopiesGpuTest : public CudaDeviceGpuTest, public ::testing::WithParamInterface<bool> {
 protected:
  CudaCopiesGpuTest() { copies_one_by_one_ = GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Copies, CudaCopiesGpuTest, ::testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "OneByOne" : "Together");
});

TEST_P(CudaCopiesGpuTest, EveryLayoutIsRight) {
  const std::vector<AttentionSpec> specs = Specs();
  ASSERT_FALSE(specs.empty());
  for (const AttentionSpec& spec : specs) {
    RunningBatch batch;
    batch.jobs.push_back(Running(spec));
    SCOPED_TRACE(ToString(batch.jobs[0].job->request().problems[0].problem) + " layout " +
                 std::to_string(static_cast<int>(spec.layout)));
    Compute(batch);
    const RunningJob& got = batch.jobs[0];
    testing::ExpectRight(got.job->request(), got.o, got.lse);
  }
}

TEST_F(CudaDeviceGpuTest, SlicesAndBatchesHaveTheBitsOfEachAlone) {
  const std::vector<AttentionSpec> specs = Specs();
  std::vector<RunningBatch> alone(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    alone[i].jobs.push_back(Running(specs[i], i));
    Compute(alone[i]);
    alone[i].on_device.reset();
    alone[i].jobs[0].on_device.reset();  // before its device
  }
  for (const SliceSize& slice : {SliceSize{}, kTinySlices, SliceSize{1, 1}}) {
    MakeDevice({.slice = slice});
    RunningBatch together;
    for (size_t i = 0; i < specs.size(); ++i) together.jobs.push_back(Running(specs[i], i));
    Compute(together);
    for (size_t i = 0; i < specs.size(); ++i) {
      const RunningJob& a = alone[i].jobs[0];
      const RunningJob& b = together.jobs[i];
      EXPECT_EQ(std::memcmp(a.o.data(), b.o.data(), a.o.size_bytes()), 0) << i;
      EXPECT_EQ(std::memcmp(a.lse.data(), b.lse.data(), a.lse.size_bytes()), 0) << i;
    }
  }
}

TEST_P(CudaCopiesGpuTest, ThreeBatchesUnderWayAreEachRight) {
  MakeDevice({.slice = {1 << 20, 1024}});
  const AttentionSpec spec = {.dtype = kernels::DType::kBF16,
                              .q_heads = 8,
                              .kv_heads = 8,
                              .q_len = 1024,
                              .kv_len = 1024,
                              .head_dim = 128,
                              .lse = true};
  RunningBatch alone;
  alone.jobs.push_back(Running(spec));
  Compute(alone);
  for (int round = 0; round < 20; ++round) {
    RunningBatch batches[3];
    for (RunningBatch& batch : batches) {
      batch.jobs.push_back(Running(spec));
      Reserve(batch);
      ASSERT_TRUE(device_->Begin(Stage::kUpload, batch).ok());
    }
    for (const Stage stage : kStages) {
      for (RunningBatch& batch : batches) {
        if (stage != Stage::kUpload) {
          ASSERT_TRUE(device_->Begin(stage, batch).ok());
        }
        Await(batch);
      }
    }
    for (const RunningBatch& batch : batches) {
      const RunningJob& got = batch.jobs[0];
      ASSERT_EQ(std::memcmp(got.o.data(), alone.jobs[0].o.data(), got.o.size_bytes()), 0);
      ASSERT_EQ(std::memcmp(got.lse.data(), alone.jobs[0].lse.data(), got.lse.size_bytes()), 0);
    }
  }
}

TEST_F(CudaDeviceGpuTest, AFullPoolMakesRequestsWaitNotFail) {
  MakeDevice({.device_bytes = 20 << 20});
  Served served(device_.get(), pool_.get());
  const AttentionSpec spec = {.dtype = kernels::DType::kBF16,
                              .q_heads = 8,
                              .kv_heads = 8,
                              .q_len = 1024,
                              .kv_len = 1024,
                              .head_dim = 128};  // 8 MiB
  std::vector<std::unique_ptr<fakes::Probe>> probes;
  for (int i = 0; i < 40; ++i) {
    probes.push_back(std::make_unique<fakes::Probe>(fakes::MakeRequest(*pool_, spec)));
    ASSERT_TRUE(served.scheduler().Submit(probes.back()->job()).ok());
  }
  for (const auto& probe : probes) EXPECT_TRUE(probe->status().ok()) << probe->status();
}

TEST_F(CudaDeviceGpuTest, CancelledRequestsEndOnceAndHarmNobody) {
  MakeDevice({.slice = kTinySlices});
  Served served(device_.get(), pool_.get(), {.max_batch_problems = 4});
  const AttentionSpec spec = {.dtype = kernels::DType::kBF16,
                              .q_heads = 8,
                              .kv_heads = 8,
                              .q_len = 512,
                              .kv_len = 512,
                              .head_dim = 128};
  RunningBatch alone;
  alone.jobs.push_back(Running(spec));
  {
    std::vector<std::unique_ptr<fakes::Probe>> probes;
    for (int i = 0; i < 200; ++i) {
      probes.push_back(std::make_unique<fakes::Probe>(fakes::MakeRequest(*pool_, spec)));
      ASSERT_TRUE(served.scheduler().Submit(probes.back()->job()).ok());
      if (i % 3 == 0) served.scheduler().Cancel(probes[i / 2]->job());
      if (i >= 16) probes[i - 16]->status();
    }
    served.Drain();
    Compute(alone);
    for (const auto& probe : probes) {
      EXPECT_EQ(probe->times_ended(), 1);
      if (!probe->status().ok()) continue;
      const Buffer& o = probe->answer().o;
      ASSERT_EQ(std::memcmp(o.data(), alone.jobs[0].o.data(), o.size_bytes()), 0);
    }
  }
  alone.on_device.reset();
  alone.jobs.clear();
  EXPECT_EQ(device_->memory().used_bytes, 0);
}

TEST_F(CudaDeviceGpuTest, AnInjectedStickyErrorLosesTheDevice) {
  MakeDevice({}, "cuda_sticky_after:40");
  Served served(device_.get(), pool_.get(), {.max_batch_problems = 1});
  const AttentionSpec spec = {.q_len = 100, .kv_len = 100, .head_dim = 128};
  std::vector<std::unique_ptr<fakes::Probe>> probes;
  int lost = 0;
  for (int i = 0; i < 40; ++i) {
    probes.push_back(std::make_unique<fakes::Probe>(fakes::MakeRequest(*pool_, spec)));
    const absl::Status refused = served.scheduler().Submit(probes.back()->job());
    if (!refused.ok()) probes.back()->job()->Finish(refused, Stage::kQueue);
    lost += absl::IsInternal(probes.back()->status());
  }
  served.Drain();
  EXPECT_EQ(lost, 1);
  EXPECT_EQ(probes.back()->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(served.lost().code(), absl::StatusCode::kInternal);
}

TEST_F(CudaDeviceGpuTest, MemoryIsFlatOverManyCalls) {
  Served served(device_.get(), pool_.get());
  const auto call = [&](int i) {
    const AttentionSpec spec = {.dtype = kernels::DType::kBF16,
                                .q_heads = 2,
                                .kv_heads = 1,
                                .q_len = 1 + i % 20,
                                .kv_len = 1 + i % 19,
                                .head_dim = 128,
                                .lse = i % 2 == 0,
                                .alibi = i % 5 == 0};
    fakes::Probe probe(fakes::MakeRequest(*pool_, spec));
    ASSERT_TRUE(served.scheduler().Submit(probe.job()).ok());
    ASSERT_TRUE(probe.status().ok());
  };
  for (int i = 0; i < 500; ++i) call(i);
  const int64_t rss_bytes = testing::RssBytes();
  const int64_t free_bytes = *cuda_->FreeDeviceBytes();
  for (int i = 0; i < 10000; ++i) call(i);
  EXPECT_LE(testing::RssBytes(), rss_bytes + (4 << 20));
  EXPECT_EQ(*cuda_->FreeDeviceBytes(), free_bytes);
}

}  // namespace
}  // namespace attnd::server
