#include "server/warm_up.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/dtype.h"

namespace attnd::server {
namespace {

constexpr int64_t kLen = 3;
constexpr int64_t kHeadDim = 64;
constexpr int64_t kElems = kLen * kHeadDim;
// Exact in every dtype. V is this everywhere, and so is the answer, whatever the weights; the
// tolerance is that of the coarsest dtype.
constexpr float kValue = 1.5f;
constexpr float kTolerance = 0.02f;

absl::StatusOr<Buffer> Filled(kernels::DType dtype, float value, BufferPool& pool) {
  absl::StatusOr<Buffer> buffer = pool.Allocate(kElems * kernels::SizeBytes(dtype));
  if (!buffer.ok()) return buffer;
  for (int64_t i = 0; i < kElems; ++i) kernels::StoreElement(buffer->data(), i, dtype, value);
  return buffer;
}

absl::StatusOr<std::unique_ptr<Request>> TinyRequest(kernels::DType dtype, BufferPool& pool) {
  auto request = std::make_unique<Request>();
  request->request_id = "warm-up";
  for (Buffer* tensor : {&request->q, &request->k, &request->v}) {
    absl::StatusOr<Buffer> filled = Filled(dtype, kValue, pool);
    if (!filled.ok()) return filled.status();
    *tensor = std::move(*filled);
  }
  ProblemSlot slot;
  slot.problem.dtype = dtype;
  slot.problem.batch = slot.problem.q_heads = slot.problem.kv_heads = 1;
  slot.problem.q_len = slot.problem.kv_len = kLen;
  slot.problem.head_dim = kHeadDim;
  slot.problem.scale = kernels::DefaultScale(kHeadDim);
  slot.q_strides = slot.k_strides = slot.v_strides = slot.o_strides =
      kernels::BHSD(1, kLen, kHeadDim);
  request->problems.push_back(slot);
  request->output.dtype = dtype;
  request->output.o_shape = {1, 1, kLen, kHeadDim};
  request->output.o_bytes = request->q.size_bytes();
  return request;
}

absl::Status WarmUpOne(Device& device, kernels::DType dtype, BufferPool& pool) {
  absl::StatusOr<std::unique_ptr<Request>> request = TinyRequest(dtype, pool);
  if (!request.ok()) return request.status();
  absl::StatusOr<Buffer> o = Filled(dtype, 0, pool);
  if (!o.ok()) return o.status();
  if (absl::Status status = device.Supports((*request)->problems[0].problem); !status.ok()) {
    return status;
  }
  std::vector<RunningJob> batch(1);
  batch[0].job =
      std::make_shared<Job>(std::move(*request), [](Job&, absl::StatusOr<Answer>, Stage) {});
  batch[0].o = std::move(*o);
  absl::Status status = device.Upload(batch);
  if (status.ok()) status = device.Run(batch);
  if (status.ok()) status = device.Download(batch);
  if (!status.ok()) return status;
  for (int64_t i = 0; i < kElems; ++i) {
    const float got = kernels::LoadElement(batch[0].o.data(), i, dtype);
    // Not ">": a NaN is wrong as well.
    if (!(std::fabs(got - kValue) <= kTolerance)) {
      return absl::InternalError(
          absl::StrCat("the device computes wrongly: ", kernels::DTypeName(dtype), " element ", i,
                       " is ", got, ", expected ", kValue));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WarmUp(Device& device) {
  BufferPool pool(int64_t{1} << 20);
  for (const kernels::DType dtype :
       {kernels::DType::kF32, kernels::DType::kF16, kernels::DType::kBF16}) {
    if (absl::Status status = WarmUpOne(device, dtype, pool); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace attnd::server
