// The GPU device over host memory and a CPU backend: layout, slices, memory and faults are those of
// a real one, and an answer must have the bits that the backend gives where the request lies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/registry.h"
#include "server/executor/cuda_device.h"
#include "server/executor/cuda_fault.h"
#include "server/executor/executor.h"
#include "tests/fakes/attention_requests.h"
#include "tests/fakes/fake_cuda.h"
#include "tests/fakes/requests.h"

namespace attnd::server {
namespace {

using fakes::AttentionSpec;
using fakes::Layout;
using ::testing::HasSubstr;

// So small that problems of a test are cut.
constexpr SliceSize kTinySlices = {.bytes = 4096, .query_rows = 16};
constexpr Stage kStages[] = {Stage::kUpload, Stage::kRun, Stage::kDownload};

std::unique_ptr<kernels::Backend> Portable() {
  return std::move(kernels::ChooseBackend("cpu_portable", {1})->backend);
}

class CudaDeviceTest : public ::testing::Test {
 protected:
  void MakeDevice(const CudaDeviceOptions& options = {}, const std::string& fault = "") {
    std::vector<std::unique_ptr<kernels::Backend>> backends;
    for (int i = 0; i < kRunStreams; ++i) backends.push_back(Portable());
    DeviceDescription description;
    description.id = "cuda:0";
    auto device =
        MakeCudaDevice(*WithFault(cuda_, fault), std::move(backends), description, options);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
  }

  RunningJob Running(const AttentionSpec& spec, uint64_t seed = 1) {
    return fakes::MakeRunning(fakes::MakeRequest(pool_, spec, seed), pool_);
  }

  // Of a device that has room.
  int64_t ReservedBytes(const AttentionSpec& spec, const SliceSize& slice = {}) {
    MakeDevice({.slice = slice});
    RunningJob running = Running(spec);
    EXPECT_TRUE(device_->Reserve(running).ok());
    return device_->memory().used_bytes;
  }

  absl::Status Compute(RunningBatch& batch) {
    for (RunningJob& running : batch.jobs) {
      if (absl::Status status = device_->Reserve(running); !status.ok()) return status;
    }
    for (const Stage stage : kStages) {
      if (absl::Status status = device_->Begin(stage, batch); !status.ok()) return status;
      for (;;) {
        const absl::StatusOr<bool> done = device_->Done(batch);
        if (!done.ok()) return done.status();
        if (*done) break;
      }
    }
    return absl::OkStatus();
  }

  // The bits of the backend on the request's own memory.
  void ExpectExact(const RunningJob& got) {
    const Request& request = got.job->request();
    const Buffer o = *pool_.Allocate(request.output.o_bytes);
    const Buffer lse = *pool_.Allocate(request.output.lse_bytes);
    const std::unique_ptr<kernels::Backend> backend = Portable();
    std::vector<kernels::AttentionTask> tasks;
    for (const ProblemSlot& slot : request.problems) {
      tasks.push_back(
          {slot.problem, backend->Plan(slot.problem), BindToHost(request, slot, o, lse)});
    }
    std::vector<unsigned char> workspace(backend->WorkspaceBytes(tasks) + 64);
    void* aligned = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) &
                                            ~uintptr_t{63});
    ASSERT_TRUE(backend->Run(tasks, aligned, nullptr).ok());
    EXPECT_EQ(std::memcmp(o.data(), got.o.data(), o.size_bytes()), 0);
    if (request.output.want_lse) {
      EXPECT_EQ(std::memcmp(lse.data(), got.lse.data(), lse.size_bytes()), 0);
    }
  }

  static std::vector<AttentionSpec> Specs() {
    std::vector<AttentionSpec> specs;
    for (const Layout layout : {Layout::kBHSD, Layout::kBSHD, Layout::kPacked}) {
      for (const kernels::DType dtype : {kernels::DType::kF32, kernels::DType::kBF16}) {
        for (const int64_t head_dim : {8, 64, 7}) {
          AttentionSpec spec = {.dtype = dtype,
                                .layout = layout,
                                .batch = 3,
                                .q_heads = 6,
                                .kv_heads = 3,
                                .q_len = 9,
                                .kv_len = 20,
                                .head_dim = head_dim};
          specs.push_back(spec);
          spec.lse = spec.alibi = true;
          spec.mask.causal.alignment = kernels::Causal::kBottomRight;
          specs.push_back(spec);
          spec.kv_len = 0;
          specs.push_back(spec);
        }
      }
    }
    return specs;
  }

  std::shared_ptr<fakes::FakeCuda> cuda_ = std::make_shared<fakes::FakeCuda>();
  BufferPool pool_{int64_t{256} << 20};
  std::unique_ptr<Device> device_;
};

TEST_F(CudaDeviceTest, PinsMemoryOfCallersWhileItIsARegion) {
  MakeDevice();
  const std::shared_ptr<PageLocker> locker = device_->RegionLocker();
  ASSERT_NE(locker, nullptr);
  std::vector<unsigned char> memory(4096);
  ASSERT_TRUE(locker->Lock(memory.data(), 4096).ok());
  EXPECT_EQ(cuda_->pinned(), (std::map<void*, int64_t>{{memory.data(), 4096}}));
  locker->Unlock(memory.data());
  EXPECT_TRUE(cuda_->pinned().empty());
}

TEST_F(CudaDeviceTest, EveryLayoutGoesThereAndBack) {
  for (const SliceSize& slice : {SliceSize{}, kTinySlices, SliceSize{1, 1}}) {
    MakeDevice({.slice = slice});
    for (const AttentionSpec& spec : Specs()) {
      SCOPED_TRACE(ToString(fakes::MakeRequest(pool_, spec)->problems[0].problem) + " layout " +
                   std::to_string(static_cast<int>(spec.layout)));
      RunningBatch batch;
      batch.jobs.push_back(Running(spec));
      ASSERT_TRUE(Compute(batch).ok());
      ExpectExact(batch.jobs[0]);
    }
    EXPECT_EQ(device_->memory().used_bytes, 0);
  }
}

TEST_F(CudaDeviceTest, ABatchOfAllHasTheBitsOfEach) {
  for (const SliceSize& slice : {SliceSize{}, kTinySlices, SliceSize{1 << 20, 1}}) {
    MakeDevice({.slice = slice});
    RunningBatch batch;
    uint64_t seed = 0;
    for (const AttentionSpec& spec : Specs()) batch.jobs.push_back(Running(spec, ++seed));
    batch.jobs.push_back(fakes::MakeRunning(fakes::MakeRequest({.answer_bytes = 0}), pool_));
    ASSERT_TRUE(Compute(batch).ok());
    batch.jobs.pop_back();
    for (const RunningJob& running : batch.jobs) ExpectExact(running);
    EXPECT_FALSE(batch.jobs[0].kernel.empty());
  }
}

// Every set of tensors that may be there already, in whole and in slices.
TEST_F(CudaDeviceTest, TensorsOnTheGpuAreUsedThere) {
  for (const SliceSize& slice : {SliceSize{}, SliceSize{1, 1}}) {
    MakeDevice({.slice = slice});
    for (AttentionSpec spec : Specs()) {
      for (int set = 1; set < 32; ++set) {
        std::unique_ptr<Request> request = fakes::MakeRequest(pool_, spec);
        GpuTensors& gpu = request->gpu;
        gpu = {.device = 0,
               .q = (set & 1) != 0,
               .k = (set & 2) != 0,
               .v = (set & 4) != 0,
               .o = (set & 8) != 0,
               .lse = (set & 16) != 0 && spec.lse};
        gpu.size_bytes =
            (gpu.q ? request->q.size_bytes() : 0) + (gpu.k ? request->k.size_bytes() : 0) +
            (gpu.v ? request->v.size_bytes() : 0) + (gpu.o ? request->output.o_bytes : 0) +
            (gpu.lse ? request->output.lse_bytes : 0);
        const bool all = gpu.size_bytes == request->payload_bytes() + request->answer_bytes();
        const int64_t copies = cuda_->copies();
        RunningBatch batch;
        batch.jobs.push_back(fakes::MakeRunning(std::move(request), pool_));
        ASSERT_TRUE(Compute(batch).ok());
        ExpectExact(batch.jobs[0]);
        if (all && !spec.alibi) {
          EXPECT_EQ(cuda_->copies(), copies);
        }
      }
    }
    EXPECT_EQ(device_->memory().used_bytes, 0);
  }
}

TEST_F(CudaDeviceTest, KernelsWaitForTheCallersEvents) {
  MakeDevice();
  int of_one = 0;
  int of_other = 0;
  std::unique_ptr<Request> request = fakes::MakeRequest(pool_, AttentionSpec{});
  request->gpu.device = 0;
  request->gpu.q = true;
  request->gpu.ready = {&of_one, &of_other};
  RunningBatch batch;
  batch.jobs.push_back(fakes::MakeRunning(std::move(request), pool_));
  ASSERT_TRUE(device_->Reserve(batch.jobs[0]).ok());
  ASSERT_TRUE(device_->Begin(Stage::kUpload, batch).ok());
  ASSERT_TRUE(*device_->Done(batch));
  EXPECT_EQ(cuda_->stream_waits(&of_one), 0);
  ASSERT_TRUE(device_->Begin(Stage::kRun, batch).ok());
  EXPECT_EQ(cuda_->stream_waits(&of_one), 1);
  EXPECT_EQ(cuda_->stream_waits(&of_other), 1);
}

TEST_F(CudaDeviceTest, SmallTensorsTravelTogether) {
  MakeDevice();
  RunningBatch batch;
  for (int i = 0; i < 20; ++i) {
    batch.jobs.push_back(
        Running({.q_len = 5, .kv_len = 5, .head_dim = 7, .lse = true, .alibi = true}));
  }
  ASSERT_TRUE(Compute(batch).ok());
  EXPECT_EQ(cuda_->copies(), 2);
  for (const RunningJob& running : batch.jobs) ExpectExact(running);
}

TEST_F(CudaDeviceTest, MoreThanTheStagingHoldsTravelsAlone) {
  MakeDevice();
  RunningBatch batch;
  for (int i = 0; i < 100; ++i) batch.jobs.push_back(Running({.q_len = 100, .kv_len = 120}, i));
  ASSERT_TRUE(Compute(batch).ok());
  EXPECT_GT(cuda_->copies(), 100);
  for (const RunningJob& running : batch.jobs) ExpectExact(running);
}

TEST_F(CudaDeviceTest, NothingIsDoneBeforeItsEventHasPassed) {
  MakeDevice();
  RunningBatch batch;
  batch.jobs.push_back(Running({}));
  ASSERT_TRUE(device_->Reserve(batch.jobs[0]).ok());
  for (const Stage stage : kStages) {
    cuda_->Hold();
    ASSERT_TRUE(device_->Begin(stage, batch).ok());
    EXPECT_FALSE(*device_->Done(batch));
    cuda_->Release();
    EXPECT_TRUE(*device_->Done(batch));
  }
  EXPECT_EQ(cuda_->waits(), 0);
}

TEST_F(CudaDeviceTest, SlicesAreGivenShortlyBeforeTheirTurnAndSmallBatchesPass) {
  MakeDevice({.slice = {1, 1}});
  RunningBatch large;
  large.jobs.push_back(Running({.q_heads = 32, .kv_heads = 32, .q_len = 4, .kv_len = 4}));
  ASSERT_TRUE(device_->Reserve(large.jobs[0]).ok());
  cuda_->Hold();
  ASSERT_TRUE(device_->Begin(Stage::kUpload, large).ok());
  const int64_t copies_at_once = cuda_->copies();
  EXPECT_LE(copies_at_once, 2 * 4) << "two of 32 slices";
  RunningBatch small;
  small.jobs.push_back(Running({.head_dim = 1}));
  ASSERT_TRUE(device_->Reserve(small.jobs[0]).ok());
  EXPECT_FALSE(*device_->Done(large));
  EXPECT_EQ(cuda_->copies(), copies_at_once);
  ASSERT_TRUE(device_->Begin(Stage::kUpload, small).ok());
  EXPECT_GT(cuda_->copies(), copies_at_once);
  cuda_->Release();
  while (!*device_->Done(large)) continue;
  for (const Stage stage : {Stage::kRun, Stage::kDownload}) {
    ASSERT_TRUE(device_->Begin(stage, large).ok());
    while (!*device_->Done(large)) continue;
  }
  ExpectExact(large.jobs[0]);
}

TEST_F(CudaDeviceTest, ABatchThatIsGivenUpWaitsForWhatIsUnderWay) {
  MakeDevice({.slice = {1, 1}});
  {
    RunningBatch batch;
    batch.jobs.push_back(Running({.q_heads = 8, .kv_heads = 8}));
    ASSERT_TRUE(device_->Reserve(batch.jobs[0]).ok());
    cuda_->Hold();
    ASSERT_TRUE(device_->Begin(Stage::kUpload, batch).ok());
  }
  EXPECT_GT(cuda_->waits(), 0);
  cuda_->Release();
  EXPECT_EQ(device_->memory().used_bytes, 0);
  RunningBatch next;
  next.jobs.push_back(Running({.q_heads = 8, .kv_heads = 8}));
  ASSERT_TRUE(Compute(next).ok());
  ExpectExact(next.jobs[0]);
}

TEST_F(CudaDeviceTest, MemoryIsBoundedAndComesBack) {
  const AttentionSpec spec = {.q_len = 64, .kv_len = 64};
  const int64_t device_bytes = ReservedBytes(spec) * 3 / 2;
  MakeDevice({.device_bytes = device_bytes});
  RunningJob first = Running(spec);
  RunningJob second = Running(spec);
  ASSERT_TRUE(device_->Reserve(first).ok());
  EXPECT_EQ(device_->Reserve(second).code(), absl::StatusCode::kUnavailable);
  first = RunningJob();
  EXPECT_TRUE(device_->Reserve(second).ok());
  RunningJob huge = Running({.q_len = 6400, .kv_len = 64});
  const absl::Status never = device_->Reserve(huge);
  EXPECT_EQ(never.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryPushbackMs(never).value_or(0), -1);
  EXPECT_THAT(std::string(never.message()), HasSubstr(std::to_string(device_bytes)));
}

// Requests that fill the device, so that there is no workspace for a launch of all of them.
TEST_F(CudaDeviceTest, WithoutRoomForOneWorkspaceRequestsRunOneByOne) {
  const AttentionSpec spec = {.kv_heads = 1, .q_len = 64, .kv_len = 64};
  for (const SliceSize& slice : {SliceSize{}, SliceSize{1, 1}}) {
    MakeDevice({.device_bytes = 2 * ReservedBytes(spec, slice), .slice = slice});
    RunningBatch batch;
    for (int i = 0; i < 2; ++i) batch.jobs.push_back(Running(spec, i));
    ASSERT_TRUE(Compute(batch).ok());
    for (const RunningJob& running : batch.jobs) ExpectExact(running);
  }
}

TEST_F(CudaDeviceTest, WorkspacesOfSlicesComeBackWhenTheyHaveRun) {
  MakeDevice({.slice = {1, 1}});
  RunningBatch batch;
  batch.jobs.push_back(Running({.q_heads = 64, .kv_heads = 64}));
  ASSERT_TRUE(device_->Reserve(batch.jobs[0]).ok());
  const int64_t reserved_bytes = device_->memory().used_bytes;
  ASSERT_TRUE(device_->Begin(Stage::kUpload, batch).ok());
  while (!*device_->Done(batch)) continue;
  for (const Stage stage : {Stage::kRun, Stage::kDownload}) {
    ASSERT_TRUE(device_->Begin(stage, batch).ok());
    while (!*device_->Done(batch)) continue;
  }
  EXPECT_EQ(device_->memory().used_bytes, reserved_bytes);
  ExpectExact(batch.jobs[0]);
}

TEST_F(CudaDeviceTest, GivesEverythingBack) {
  MakeDevice({.slice = {1, 1}});
  {
    RunningBatch batch;
    batch.jobs.push_back(Running({.q_heads = 8, .kv_heads = 8}));
    ASSERT_TRUE(Compute(batch).ok());
  }
  device_.reset();
  EXPECT_EQ(cuda_->alive(), 0u);
}

// Counts how often somebody waits for a time.
class CountingClock final : public Clock {
 public:
  TimePoint Now() const override { return clock_.Now(); }
  void WaitUntil(CondVar& condition, Mutex& mutex, TimePoint deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (deadline != kNever) ++waits_;
    clock_.WaitUntil(condition, mutex, deadline);
  }
  int64_t waits() const { return waits_; }

 private:
  SteadyClock clock_;
  std::atomic<int64_t> waits_{0};
};

// With the executor in front.
class CudaFaultTest : public CudaDeviceTest {
 protected:
  fakes::Probe& Submit(const AttentionSpec& spec) {
    probes_.push_back(std::make_unique<fakes::Probe>(fakes::MakeRequest(pool_, spec)));
    const absl::Status status = scheduler_.Submit(probes_.back()->job());
    if (!status.ok()) probes_.back()->job()->Finish(status, Stage::kQueue);
    return *probes_.back();
  }
  void StartExecutor(Duration busy_poll = {}) {
    executor_ = std::make_unique<Executor>(
        ExecutorOptions{[this](const absl::Status& status) { lost_.push_back(status); }, busy_poll},
        &scheduler_, device_.get(), &pool_, &clock_, &metrics_);
  }
  // While a batch is under way for 40 ms.
  int64_t WaitsOfABatch(Duration busy_poll) {
    MakeDevice();
    StartExecutor(busy_poll);
    cuda_->Hold();
    fakes::Probe& probe = Submit({.q_len = 20, .kv_len = 20});
    while (device_->memory().used_bytes == 0) std::this_thread::yield();
    const int64_t before = clock_.waits();
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    const int64_t waits = clock_.waits() - before;
    cuda_->Release();
    EXPECT_TRUE(probe.status().ok()) << probe.status();
    return waits;
  }
  ~CudaFaultTest() override {
    scheduler_.Drain();
    executor_.reset();
    for (const auto& probe : probes_) EXPECT_EQ(probe->times_ended(), 1);
    probes_.clear();
  }

  CountingClock clock_;
  Metrics metrics_;
  std::vector<absl::Status> lost_;
  std::vector<std::unique_ptr<fakes::Probe>> probes_;
  Scheduler scheduler_{{.max_batch_problems = 2}, &clock_, &metrics_};
  std::unique_ptr<Executor> executor_;
};

TEST_F(CudaFaultTest, AStickyErrorLosesTheDeviceAndNoCall) {
  MakeDevice({}, "cuda_sticky_after:25");
  StartExecutor();
  int answered = 0;
  for (int i = 0; i < 40; ++i) {
    const absl::Status status = Submit({.q_len = 20, .kv_len = 20, .lse = true}).status();
    if (status.ok()) {
      ++answered;
    } else {
      EXPECT_THAT(status.code(),
                  testing::AnyOf(absl::StatusCode::kInternal, absl::StatusCode::kUnavailable));
      EXPECT_THAT(std::string(status.message()), HasSubstr("injected"));
    }
  }
  EXPECT_EQ(answered, 12) << "two copies each";
  EXPECT_EQ(probes_[12]->status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(probes_[13]->status().code(), absl::StatusCode::kUnavailable);
  executor_.reset();
  ASSERT_EQ(lost_.size(), 1u);
  EXPECT_EQ(lost_[0].code(), absl::StatusCode::kInternal);
}

TEST_F(CudaFaultTest, OutOfMemoryIsBackPressure) {
  // Blocks larger than what is free beside one of them; and every second request for memory fails.
  cuda_->SetDeviceBytes(40 << 20);
  MakeDevice({.device_bytes = 24 << 20}, "cuda_oom_every:8");
  StartExecutor();
  for (int i = 0; i < 24; ++i)
    Submit({.q_heads = 8, .kv_heads = 8, .q_len = 256 + 64 * i, .kv_len = 8});
  for (const auto& probe : probes_) EXPECT_TRUE(probe->status().ok()) << probe->status();
  EXPECT_TRUE(lost_.empty());
}

TEST_F(CudaFaultTest, NapsWhileABatchIsUnderWay) { EXPECT_GT(WaitsOfABatch({}), 10); }

TEST_F(CudaFaultTest, LooksWithoutNapsForAsLongAsItIsToldTo) {
  EXPECT_EQ(WaitsOfABatch(std::chrono::minutes(1)), 0);
}

TEST_F(CudaFaultTest, InputsGoWithTheAnswer) {
  MakeDevice();
  StartExecutor();
  fakes::Probe& probe = Submit({.q_len = 20, .kv_len = 30});
  ASSERT_TRUE(probe.status().ok()) << probe.status();
  const Request& request = probe.job()->request();
  for (const Buffer* input : {&request.q, &request.k, &request.v}) {
    EXPECT_EQ(pool_.HeldBytes(*input), 0);
    EXPECT_GT(input->size_bytes(), 0) << "its size stays";
  }
  EXPECT_EQ(pool_.used_bytes(), pool_.HeldBytes(probe.answer().o));
}

// Batches under way that fill the device to the last byte must not wait for each other.
TEST_F(CudaFaultTest, BatchesThatFillTheDeviceRun) {
  const AttentionSpec spec = {.q_len = 64, .kv_len = 64};
  const int64_t device_bytes = 2 * kCudaBatches * ReservedBytes(spec);
  MakeDevice({.device_bytes = device_bytes});
  cuda_->Hold();  // until all are under way
  for (int i = 0; i < 4 * kCudaBatches; ++i) Submit(spec);
  StartExecutor();
  while (device_->memory().used_bytes < device_bytes) std::this_thread::yield();
  cuda_->Release();
  for (const auto& probe : probes_) EXPECT_TRUE(probe->status().ok()) << probe->status();
}

TEST(WithFault, RefusesWhatItDoesNotKnow) {
  for (const char* fault : {"x", "cuda_oom_every", "cuda_oom_every:0", "cuda_oom_every:x"}) {
    EXPECT_EQ(WithFault(std::make_shared<fakes::FakeCuda>(), fault).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace attnd::server
