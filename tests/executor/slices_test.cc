// Long problems in slices: the bits stay, and each slice is worth its time.
#include "server/executor/slices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/registry.h"
#include "server/executor/cpu_device.h"
#include "tests/fakes/fake_backend.h"
#include "tests/fakes/requests.h"

namespace attnd::server {
namespace {

using kernels::AttentionProblem;
using kernels::AttentionTask;
using std::chrono::milliseconds;

// Tensors of a problem with random values, [batch, len, heads, head_dim] or heads before len.
class Tensors {
 public:
  Tensors(const AttentionProblem& p, bool heads_first) : problem_(p) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    const auto strides = [&](int64_t heads, int64_t len) {
      return heads_first ? kernels::BHSD(heads, len, p.head_dim)
                         : kernels::BSHD(heads, len, p.head_dim);
    };
    q_strides_ = strides(p.q_heads, p.q_len);
    kv_strides_ = strides(p.kv_heads, p.kv_len);
    const auto fill = [&](std::vector<unsigned char>& tensor, int64_t elems) {
      tensor.resize(static_cast<size_t>(elems * kernels::SizeBytes(p.dtype)));
      for (int64_t i = 0; i < elems; ++i) {
        kernels::StoreElement(tensor.data(), i, p.dtype, normal(random));
      }
    };
    fill(q_, p.batch * q_strides_.batch);
    fill(k_, p.batch * kv_strides_.batch);
    fill(v_, p.batch * kv_strides_.batch);
    for (int64_t head = 0; head < p.q_heads; ++head) slopes_.push_back(0.01F * (head + 1));
  }

  // O and LSE of the problem computed in that many parts, one call each.
  std::vector<unsigned char> Compute(kernels::Backend& backend, int64_t parts) {
    std::vector<unsigned char> o(q_.size(), 0xee);
    std::vector<float> lse(static_cast<size_t>(problem_.batch * problem_.q_heads * problem_.q_len));
    AttentionTask task{problem_, backend.Plan(problem_), {}};
    kernels::AttentionArgs& args = task.args;
    args.q = q_.data();
    args.k = k_.data();
    args.v = v_.data();
    args.o = o.data();
    args.q_strides = args.o_strides = q_strides_;
    args.k_strides = args.v_strides = kv_strides_;
    args.lse = lse.data();
    args.lse_batch_stride = problem_.q_heads * problem_.q_len;
    args.lse_head_stride = problem_.q_len;
    if (problem_.alibi) args.alibi_slopes = slopes_.data();
    calls_ = 0;
    for (const AttentionTask& part : CutTask(task, parts)) {
      ++calls_;
      std::vector<unsigned char> workspace(
          static_cast<size_t>(backend.WorkspaceBytes({&part, 1}) + 64));
      void* aligned = workspace.data() + 64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64;
      EXPECT_TRUE(backend.Run({&part, 1}, aligned, nullptr).ok());
    }
    const auto* const bytes = reinterpret_cast<const unsigned char*>(lse.data());
    o.insert(o.end(), bytes, bytes + lse.size() * sizeof(float));
    return o;
  }

  int64_t calls() const { return calls_; }

 private:
  const AttentionProblem problem_;
  kernels::Strides q_strides_;
  kernels::Strides kv_strides_;
  std::vector<unsigned char> q_;
  std::vector<unsigned char> k_;
  std::vector<unsigned char> v_;
  std::vector<float> slopes_;
  int64_t calls_ = 0;
};

// Of few heads with many queries each.
std::vector<AttentionProblem> LongHeads() {
  std::vector<AttentionProblem> problems;
  for (const kernels::DType dtype : {kernels::DType::kF32, kernels::DType::kBF16}) {
    const AttentionProblem plain = {.dtype = dtype,
                                    .batch = 1,
                                    .q_heads = 3,
                                    .kv_heads = 1,
                                    .q_len = 900,
                                    .kv_len = 700,
                                    .head_dim = 40,
                                    .mask = {},
                                    .scale = 0.2F};
    problems.insert(problems.end(), 4, plain);
    AttentionProblem* const last = &problems.back();
    last[-1].mask.causal.alignment = kernels::Causal::kBottomRight;
    last[-2].mask.causal.alignment = kernels::Causal::kTopLeft;
    last[-2].alibi = true;
    last[-3].mask.window = {300, 5};
  }
  return problems;
}

std::vector<AttentionProblem> Problems() {
  std::vector<AttentionProblem> problems = LongHeads();
  for (const kernels::DType dtype :
       {kernels::DType::kF32, kernels::DType::kF16, kernels::DType::kBF16}) {
    const AttentionProblem plain = {.dtype = dtype,
                                    .batch = 2,
                                    .q_heads = 12,
                                    .kv_heads = 6,
                                    .q_len = 33,
                                    .kv_len = 133,
                                    .head_dim = 72,
                                    .mask = {},
                                    .scale = 0.2F};
    problems.insert(problems.end(), 5, plain);
    AttentionProblem* const last = &problems.back();
    last[-1].mask.causal.alignment = kernels::Causal::kBottomRight;
    last[-2].alibi = true;
    last[-3].mask.window = {30, 5};
    last[-3].softcap = 3;
    last[-4].q_len = 1;
    last[-4].kv_len = 2000;  // split along the keys
  }
  return problems;
}

// S38, the long problem itself: in slices it has the bits that it has in one piece.
TEST(Slices, S38HaveTheBitsOfTheWhole) {
  for (const kernels::BackendEntry& entry : kernels::BackendEntries()) {
    if (entry.memory != kernels::MemoryKind::kHost || !entry.available().ok()) continue;
    const auto chosen = kernels::ChooseBackend(entry.name, {2});
    ASSERT_TRUE(chosen.ok());
    for (const AttentionProblem& problem : Problems()) {
      if (!chosen->backend->Supports(problem).ok()) continue;
      for (const bool heads_first : {true, false}) {
        Tensors tensors(problem, heads_first);
        const std::vector<unsigned char> whole = tensors.Compute(*chosen->backend, 1);
        ASSERT_EQ(tensors.calls(), 1);
        for (const int64_t parts : {2, 5, 12, 1000}) {
          EXPECT_EQ(tensors.Compute(*chosen->backend, parts), whole)
              << entry.name << " " << ToString(problem) << " in " << parts;
          const int64_t heads = problem.batch * problem.kv_heads;
          const int64_t most = heads * (1 + problem.q_len / kLeastQueries);
          EXPECT_GE(tensors.calls(), std::min<int64_t>(parts, heads));
          EXPECT_GE(tensors.calls(), problem.q_len > kLeastQueries ? 2 : 1);
          EXPECT_LE(tensors.calls(), most);
        }
      }
    }
  }
}

class SlicedDeviceTest : public ::testing::Test {
 protected:
  SlicedDeviceTest() {
    auto backend = std::make_unique<fakes::FakeBackend>();
    backend_ = backend.get();
    device_ = WrapCpuBackend(std::move(backend), DeviceDescription());
  }

  // Of one request that is predicted to take so long, in slices of 10 ms.
  RunningBatch MakeBatch(int64_t heads, Duration predicted) {
    auto request = std::make_unique<Request>();
    ProblemSlot slot;
    slot.problem = {.batch = 1,
                    .q_heads = heads,
                    .kv_heads = heads,
                    .q_len = 4,
                    .kv_len = 4,
                    .head_dim = 8,
                    .mask = {},
                    .scale = 1};
    slot.q_strides = slot.k_strides = slot.v_strides = slot.o_strides = kernels::BHSD(heads, 4, 8);
    request->problems.push_back(slot);
    request->output.o_bytes = heads * 4 * 8 * 4;
    RunningJob running;
    for (Buffer* const tensor : {&request->q, &request->k, &request->v, &running.o}) {
      *tensor = *pool_.Allocate(request->output.o_bytes);
    }
    running.job = std::make_shared<Job>(std::move(request),
                                        [](Job&, const absl::StatusOr<Answer>&, Stage) {});
    running.job->SetPredicted(predicted);
    RunningBatch batch;
    batch.max_slice = milliseconds(10);
    batch.jobs.push_back(std::move(running));
    return batch;
  }

  BufferPool pool_{1 << 20};
  fakes::FakeBackend* backend_;
  std::unique_ptr<Device> device_;
};

TEST_F(SlicedDeviceTest, ALongBatchIsComputedASliceALook) {
  RunningBatch batch = MakeBatch(8, milliseconds(35));
  ASSERT_TRUE(device_->Begin(Stage::kRun, batch).ok());
  EXPECT_TRUE(batch.in_slices);
  EXPECT_EQ(batch.jobs[0].kernel, "attn_fwd_f32_d64_full_fake");
  for (size_t calls = 1; calls < 4; ++calls) {
    EXPECT_EQ(backend_->calls.size(), calls);
    EXPECT_EQ(*device_->Done(batch), calls == 3) << calls;
  }
  ASSERT_EQ(backend_->calls.size(), 4u) << "of two heads each";
  for (const auto& call : backend_->calls) {
    int64_t heads = 0;
    for (const AttentionTask& task : call.tasks) heads += task.problem.q_heads;
    EXPECT_EQ(heads, 2);
  }
  EXPECT_TRUE(*device_->Done(batch));
  EXPECT_EQ(backend_->calls.size(), 4u);
}

// One head, causal: later queries see more keys, and fewer of them are a part.
TEST(Slices, QueriesAreCutByWhatTheyCost) {
  AttentionTask task;
  task.problem = {.batch = 1,
                  .q_heads = 1,
                  .kv_heads = 1,
                  .q_len = 16 * kLeastQueries,
                  .kv_len = 16 * kLeastQueries,
                  .head_dim = 8,
                  .mask = {},
                  .scale = 1};
  task.problem.mask.causal.alignment = kernels::Causal::kBottomRight;
  const std::vector<AttentionTask> parts = CutTask(task, 4);
  ASSERT_EQ(parts.size(), 4u);
  int64_t end = 0;
  for (const AttentionTask& part : parts) {
    EXPECT_EQ(part.q_begin, end);
    end = part.q_end;
    EXPECT_EQ(end % kLeastQueries, 0);
    const double share =
        kernels::Flops(part.problem, part.q_begin, part.q_end) / kernels::Flops(task.problem);
    EXPECT_NEAR(share, 0.25, 0.07);
  }
  EXPECT_EQ(end, task.problem.q_len);
  EXPECT_GT(parts[0].q_end - parts[0].q_begin, 2 * (parts[3].q_end - parts[3].q_begin));
}

TEST_F(SlicedDeviceTest, AShortOneAndOneThatCannotBeCutRunWhole) {
  RunningBatch small = MakeBatch(8, milliseconds(10));
  ASSERT_TRUE(device_->Begin(Stage::kRun, small).ok());
  EXPECT_FALSE(small.in_slices);
  EXPECT_TRUE(*device_->Done(small));
  RunningBatch one_head = MakeBatch(1, milliseconds(500));
  ASSERT_TRUE(device_->Begin(Stage::kRun, one_head).ok());
  EXPECT_FALSE(one_head.in_slices);
  EXPECT_TRUE(*device_->Done(one_head));
  EXPECT_EQ(backend_->calls.size(), 2u);
}

TEST_F(SlicedDeviceTest, ASliceThatFailsFailsTheBatch) {
  RunningBatch batch = MakeBatch(8, milliseconds(35));
  ASSERT_TRUE(device_->Begin(Stage::kRun, batch).ok());
  backend_->run_status = absl::InternalError("a bad day");
  EXPECT_EQ(device_->Done(batch).status(), backend_->run_status);
}

}  // namespace
}  // namespace attnd::server
