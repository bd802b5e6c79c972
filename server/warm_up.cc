#include "server/warm_up.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/dtype.h"

namespace attnd::server {
namespace {

constexpr int64_t kLen = 3;
// One of each class, kernels/launch_key.h.
constexpr int64_t kHeadDims[] = {64, 96, 128, 192, 256};
// Exact in every dtype. V is this everywhere, and so is the answer, whatever the weights; the
// tolerance is that of the coarsest dtype.
constexpr float kValue = 1.5f;
constexpr float kTolerance = 0.02f;

// One of each family.
std::vector<kernels::MaskSpec> Masks() {
  std::vector<kernels::MaskSpec> masks(3);
  masks[1].causal.alignment = kernels::Causal::kBottomRight;
  masks[2].window = {1, 1};
  return masks;
}

std::vector<kernels::AttentionProblem> TinyProblems() {
  std::vector<kernels::AttentionProblem> problems;
  for (const kernels::DType dtype :
       {kernels::DType::kF32, kernels::DType::kF16, kernels::DType::kBF16}) {
    for (const int64_t head_dim : kHeadDims) {
      for (const kernels::MaskSpec& mask : Masks()) {
        kernels::AttentionProblem problem;
        problem.dtype = dtype;
        problem.batch = problem.q_heads = problem.kv_heads = 1;
        problem.q_len = problem.kv_len = kLen;
        problem.head_dim = head_dim;
        problem.mask = mask;
        problem.scale = kernels::DefaultScale(head_dim);
        problems.push_back(problem);
      }
    }
  }
  return problems;
}

absl::StatusOr<Buffer> Filled(const kernels::AttentionProblem& problem, float value,
                              BufferPool& pool) {
  const kernels::DType dtype = problem.dtype;
  const int64_t elems = kLen * problem.head_dim;
  absl::StatusOr<Buffer> buffer = pool.Allocate(elems * kernels::SizeBytes(dtype));
  if (!buffer.ok()) return buffer;
  for (int64_t i = 0; i < elems; ++i) kernels::StoreElement(buffer->data(), i, dtype, value);
  return buffer;
}

absl::StatusOr<std::unique_ptr<Request>> TinyRequest(const kernels::AttentionProblem& problem,
                                                     BufferPool& pool) {
  auto request = std::make_unique<Request>();
  request->request_id = "warm-up";
  for (Buffer* tensor : {&request->q, &request->k, &request->v}) {
    absl::StatusOr<Buffer> filled = Filled(problem, kValue, pool);
    if (!filled.ok()) return filled.status();
    *tensor = std::move(*filled);
  }
  ProblemSlot slot;
  slot.problem = problem;
  slot.q_strides = slot.k_strides = slot.v_strides = slot.o_strides =
      kernels::BHSD(1, kLen, problem.head_dim);
  request->problems.push_back(slot);
  request->output.dtype = problem.dtype;
  request->output.o_shape = {1, 1, kLen, problem.head_dim};
  request->output.o_bytes = request->q.size_bytes();
  return request;
}

absl::Status RunThrough(Device& device, RunningBatch& batch) {
  if (absl::Status status = device.Reserve(batch.jobs[0]); !status.ok()) return status;
  for (const Stage stage : {Stage::kUpload, Stage::kRun, Stage::kDownload}) {
    if (absl::Status status = device.Begin(stage, batch); !status.ok()) return status;
    for (bool done = false; !done;) {
      const absl::StatusOr<bool> look = device.Done(batch);
      if (!look.ok()) return look.status();
      done = *look;
    }
  }
  return absl::OkStatus();
}

absl::Status WarmUpOne(Device& device, const kernels::AttentionProblem& problem, BufferPool& pool) {
  absl::StatusOr<std::unique_ptr<Request>> request = TinyRequest(problem, pool);
  if (!request.ok()) return request.status();
  absl::StatusOr<Buffer> o = Filled(problem, 0, pool);
  if (!o.ok()) return o.status();
  RunningBatch batch;
  batch.jobs.resize(1);
  batch.jobs[0].job =
      std::make_shared<Job>(std::move(*request), [](Job&, absl::StatusOr<Answer>, Stage) {});
  batch.jobs[0].o = std::move(*o);
  if (absl::Status status = RunThrough(device, batch); !status.ok()) return status;
  for (int64_t i = 0; i < kLen * problem.head_dim; ++i) {
    const float got = kernels::LoadElement(batch.jobs[0].o.data(), i, problem.dtype);
    // Not ">": a NaN is wrong as well.
    if (!(std::fabs(got - kValue) <= kTolerance)) {
      return absl::InternalError(absl::StrCat("the device computes wrongly: ", ToString(problem),
                                              " element ", i, " is ", got, ", expected ", kValue));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WarmUp(Device& device) {
  BufferPool pool(int64_t{1} << 20);
  absl::Status unsupported;
  bool any = false;
  for (const kernels::AttentionProblem& problem : TinyProblems()) {
    if (absl::Status status = device.Supports(problem); !status.ok()) {
      unsupported = status;
      continue;
    }
    any = true;
    if (absl::Status status = WarmUpOne(device, problem, pool); !status.ok()) return status;
  }
  return any ? absl::OkStatus() : unsupported;
}

}  // namespace attnd::server
