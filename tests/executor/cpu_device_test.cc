#include "server/executor/cpu_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/executor/give_way.h"
#include "tests/fakes/fake_backend.h"
#include "tests/fakes/requests.h"

namespace attnd::server {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class CpuDeviceTest : public ::testing::Test {
 protected:
  CpuDeviceTest() {
    auto backend = std::make_unique<fakes::FakeBackend>();
    backend_ = backend.get();
    device_ = WrapCpuBackend(std::move(backend), DeviceDescription());
  }

  RunningJob MakeRunning(std::unique_ptr<Request> request) {
    RunningJob running;
    running.o = *pool_.Allocate(request->output.o_bytes);
    running.lse = *pool_.Allocate(request->output.lse_bytes);
    running.job = std::make_shared<Job>(std::move(request),
                                        [](Job&, const absl::StatusOr<Answer>&, Stage) {});
    return running;
  }

  static float At(const Buffer& buffer, int64_t index) {
    return reinterpret_cast<const float*>(buffer.data())[index];
  }

  BufferPool pool_{int64_t{64} << 20};
  fakes::FakeBackend* backend_;
  std::unique_ptr<Device> device_;
};

TEST_F(CpuDeviceTest, RunsTheWholeBatchInOneCall) {
  RunningBatch batch;
  batch.jobs.push_back(MakeRunning(fakes::MakeAttention(pool_, 3, 8, 1, 2, 3)));
  batch.jobs.push_back(MakeRunning(fakes::MakeAttention(pool_, 5, 16, 4, 5, 6)));
  for (const Stage stage : {Stage::kUpload, Stage::kRun, Stage::kDownload}) {
    ASSERT_TRUE(device_->Begin(stage, batch).ok());
    EXPECT_TRUE(*device_->Done(batch));
  }
  ASSERT_EQ(backend_->calls.size(), 1u);
  const std::vector<kernels::AttentionTask>& tasks = backend_->calls[0].tasks;
  ASSERT_EQ(tasks.size(), 2u);
  const Request& second = batch.jobs[1].job->request();
  EXPECT_EQ(tasks[1].problem, second.problems[0].problem);
  EXPECT_EQ(tasks[1].args.q, second.q.data());
  EXPECT_EQ(tasks[1].args.v, second.v.data());
  EXPECT_EQ(tasks[1].args.o, batch.jobs[1].o.data());
  EXPECT_EQ(tasks[1].plan.kernel, batch.jobs[1].kernel);
  EXPECT_EQ(batch.jobs[0].kernel, "attn_fwd_f32_d64_full_fake");
  EXPECT_EQ(At(batch.jobs[0].o, 3 * 8 - 1), 1);
  EXPECT_EQ(At(batch.jobs[1].o, 5 * 16 - 1), 2);
  EXPECT_EQ(At(batch.jobs[1].lse, 4), -2);
}

TEST_F(CpuDeviceTest, APackedRequestIsATaskForEachSequence) {
  std::unique_ptr<Request> request = fakes::MakeAttention(pool_, 4, 8, 0, 0, 0);
  ProblemSlot first = request->problems[0];
  first.problem.q_len = first.problem.kv_len = 1;
  ProblemSlot rest = first;
  rest.problem.q_len = rest.problem.kv_len = 3;
  rest.q_offset_elems = rest.k_offset_elems = rest.v_offset_elems = rest.o_offset_elems = 8;
  rest.lse_offset_elems = 1;
  request->problems = {first, rest};
  RunningBatch batch;
  batch.jobs.push_back(MakeRunning(std::move(request)));
  ASSERT_TRUE(device_->Begin(Stage::kRun, batch).ok());
  ASSERT_EQ(backend_->calls.at(0).tasks.size(), 2u);
  EXPECT_EQ(At(batch.jobs[0].o, 7), 1);
  EXPECT_EQ(At(batch.jobs[0].o, 8), 2);
  EXPECT_EQ(At(batch.jobs[0].lse, 0), -1);
  EXPECT_EQ(At(batch.jobs[0].lse, 1), -2);
}

TEST_F(CpuDeviceTest, ARequestWithoutSequencesRunsNothing) {
  RunningBatch batch;
  batch.jobs.push_back(MakeRunning(fakes::MakeRequest({.answer_bytes = 0})));
  EXPECT_TRUE(device_->Begin(Stage::kRun, batch).ok());
  EXPECT_TRUE(backend_->calls.empty());
  EXPECT_EQ(batch.jobs[0].kernel, "");
}

TEST_F(CpuDeviceTest, TheWorkspaceIsAlignedKeptAndBounded) {
  RunningBatch batch;
  batch.jobs.push_back(MakeRunning(fakes::MakeAttention(pool_, 1, 8, 0, 0, 0)));
  ASSERT_TRUE(device_->Begin(Stage::kRun, batch).ok());
  EXPECT_EQ(backend_->calls.back().workspace, nullptr) << "none was asked for";
  backend_->workspace_bytes = 100000;
  ASSERT_TRUE(device_->Begin(Stage::kRun, batch).ok());
  void* const first = backend_->calls.back().workspace;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
  backend_->workspace_bytes = 99;
  ASSERT_TRUE(device_->Begin(Stage::kRun, batch).ok());
  EXPECT_EQ(backend_->calls.back().workspace, first) << "kept";
  backend_->workspace_bytes = kMaxKeptWorkspaceBytes + 1;
  ASSERT_TRUE(device_->Begin(Stage::kRun, batch).ok());
  const size_t calls = backend_->calls.size();
  backend_->workspace_bytes = kMaxWorkspaceBytes + 1;
  const absl::Status status = device_->Begin(Stage::kRun, batch);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(kMaxWorkspaceBytes + 1)));
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(kMaxWorkspaceBytes)));
  EXPECT_EQ(backend_->calls.size(), calls);
  backend_->workspace_bytes = 64;
  EXPECT_TRUE(device_->Begin(Stage::kRun, batch).ok()) << "the device goes on";
}

TEST_F(CpuDeviceTest, PassesTheBackendsErrorsOn) {
  RunningBatch batch;
  batch.jobs.push_back(MakeRunning(fakes::MakeAttention(pool_, 1, 8, 0, 0, 0)));
  backend_->run_status = absl::InternalError("a bad day");
  EXPECT_EQ(device_->Begin(Stage::kRun, batch), backend_->run_status);
  kernels::AttentionProblem problem = batch.jobs[0].job->request().problems[0].problem;
  EXPECT_TRUE(device_->Supports(problem).ok());
  problem.dtype = kernels::DType::kBF16;
  EXPECT_EQ(device_->Supports(problem).code(), absl::StatusCode::kUnimplemented);
}

TEST(CreateCpuDevice, DescribesItselfAndComputes) {
  absl::StatusOr<std::unique_ptr<Device>> device = CreateCpuDevice("reference", 1);
  ASSERT_TRUE(device.ok()) << device.status();
  const DeviceDescription& description = (*device)->Describe();
  EXPECT_EQ(description.id, "cpu");
  EXPECT_FALSE(description.name.empty());
  EXPECT_EQ(description.processors, 1);
  EXPECT_EQ(description.backend, "reference");
  EXPECT_FALSE(description.backend_reason.empty());
  EXPECT_THAT(description.backends, Contains("reference"));
  EXPECT_EQ(description.backends.back(), "reference") << "best first";

  // Equal keys weigh the same: O is the V that all rows share, LSE is x + ln(kv_len).
  BufferPool pool(1 << 20);
  RunningJob running;
  running.o = *pool.Allocate(4 * 8 * 4);
  running.lse = *pool.Allocate(4 * 4);
  running.job = std::make_shared<Job>(fakes::MakeAttention(pool, 4, 8, 0.5F, 0.25F, 3.0F),
                                      [](Job&, const absl::StatusOr<Answer>&, Stage) {});
  RunningBatch batch;
  batch.jobs.push_back(std::move(running));
  ASSERT_TRUE((*device)->Begin(Stage::kRun, batch).ok());
  const double x = 8 * 0.5 * 0.25 / std::sqrt(8.0);
  EXPECT_NEAR(reinterpret_cast<float*>(batch.jobs[0].o.data())[31], 3.0, 1e-6);
  EXPECT_NEAR(reinterpret_cast<float*>(batch.jobs[0].lse.data())[3], x + std::log(4.0), 1e-6);
  EXPECT_THAT(batch.jobs[0].kernel, StartsWith("attn_fwd_f32_d64_full_"));
}

// Threads of this process by niceness.
std::map<int, int> ThreadsByNice() {
  std::map<int, int> threads;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const auto id = static_cast<id_t>(std::stoul(task.path().filename()));
    ++threads[getpriority(PRIO_PROCESS, id)];
  }
  return threads;
}

TEST(CreateCpuDevice, ItsThreadsGiveWayToTheOthers) {
  const int own = getpriority(PRIO_PROCESS, 0);
  if (own + kNiceOfComputing > 19) GTEST_SKIP() << "this process is as nice as can be";
  const std::map<int, int> before = ThreadsByNice();
  const auto device = CreateCpuDevice("", 3, "");
  ASSERT_TRUE(device.ok()) << device.status();
  std::map<int, int> expected = before;
  expected[own + kNiceOfComputing] += 2;  // the third is the caller's
  EXPECT_EQ(ThreadsByNice(), expected);
}

TEST(CreateCpuDevice, ChoosesABackendWhereNoneIsNamed) {
  absl::StatusOr<std::unique_ptr<Device>> device = CreateCpuDevice("", 0);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_GE((*device)->Describe().processors, 1);
  EXPECT_THAT((*device)->Describe().backends, Contains((*device)->Describe().backend));
}

TEST(CreateCpuDevice, AnUnknownBackendIsAnError) {
  EXPECT_EQ(CreateCpuDevice("abacus", 1).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace attnd::server
