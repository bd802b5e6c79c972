#include "tests/bench/caller_tensors.h"

#include <algorithm>
#include <utility>

namespace attnd::bench {

using server::Buffer;
using server::Request;

CallerTensors::CallerTensors(std::shared_ptr<server::Cuda> cuda, const Request& like)
    : cuda_(std::move(cuda)),
      q_bytes_(like.q.size_bytes()),
      kv_bytes_(like.k.size_bytes()),
      o_bytes_(like.output.o_bytes) {}

CallerTensors::~CallerTensors() {
  if (cuda_ != nullptr && block_ != nullptr) cuda_->FreeDeviceMemory(block_);
}

absl::StatusOr<std::unique_ptr<CallerTensors>> CallerTensors::Create(
    std::shared_ptr<server::Cuda> cuda, const Request& like, int callers) {
  std::unique_ptr<CallerTensors> tensors(new CallerTensors(std::move(cuda), like));
  absl::Status status =
      tensors->Allocate(tensors->q_bytes_ + 2 * tensors->kv_bytes_ + callers * tensors->o_bytes_);
  if (status.ok()) status = tensors->CopyInputs(like);
  if (!status.ok()) return status;
  return tensors;
}

absl::Status CallerTensors::Allocate(int64_t size_bytes) {
  if (cuda_ == nullptr) {
    host_.resize(static_cast<size_t>(size_bytes));
    block_ = host_.data();
    return absl::OkStatus();
  }
  const absl::StatusOr<void*> memory = cuda_->NewDeviceMemory(size_bytes);
  if (!memory.ok()) return memory.status();
  block_ = static_cast<unsigned char*>(*memory);
  return absl::OkStatus();
}

absl::Status CallerTensors::CopyInputs(const Request& like) {
  const std::pair<int64_t, const Buffer*> inputs[] = {
      {0, &like.q}, {q_bytes_, &like.k}, {q_bytes_ + kv_bytes_, &like.v}};
  if (cuda_ == nullptr) {
    for (const auto& [offset, tensor] : inputs) {
      std::copy_n(tensor->data(), tensor->size_bytes(), block_ + offset);
    }
    return absl::OkStatus();
  }
  const absl::StatusOr<kernels::Stream> stream = cuda_->NewStream();
  if (!stream.ok()) return stream.status();
  std::vector<server::CudaCopy> copies;
  for (const auto& [offset, tensor] : inputs) {
    copies.push_back({block_ + offset, 0, tensor->data(), 0, tensor->size_bytes(), 1});
  }
  absl::Status status = cuda_->CopyAsync(copies, *stream);
  status.Update(cuda_->Wait(*stream));
  cuda_->FreeStream(*stream);
  return status;
}

void CallerTensors::LendTo(int caller, Request& request) const {
  request.q = Buffer::Lend(block_, q_bytes_);
  request.k = Buffer::Lend(block_ + q_bytes_, kv_bytes_);
  request.v = Buffer::Lend(block_ + q_bytes_ + kv_bytes_, kv_bytes_);
  request.output.o_place = block_ + q_bytes_ + 2 * kv_bytes_ + caller * o_bytes_;
  request.leased_input_bytes = request.payload_bytes();
  if (cuda_ == nullptr) return;
  request.gpu.device = 0;
  request.gpu.q = request.gpu.k = request.gpu.v = request.gpu.o = true;
  request.gpu.size_bytes = request.payload_bytes() + o_bytes_;
}

}  // namespace attnd::bench
