#include "server/executor/cuda_staging.h"

#include <algorithm>
#include <cstring>

namespace attnd::server {
namespace {

void CopyRows(unsigned char* to, int64_t to_pitch, const unsigned char* from, int64_t from_pitch,
              int64_t row_bytes, int64_t rows) {
  if (to_pitch == row_bytes && from_pitch == row_bytes) {
    std::memcpy(to, from, static_cast<size_t>(row_bytes * rows));
    return;
  }
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(to + row * to_pitch, from + row * from_pitch, static_cast<size_t>(row_bytes));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Staging>> Staging::Create(std::shared_ptr<Cuda> cuda) {
  std::unique_ptr<Staging> staging(new Staging(std::move(cuda)));
  for (Area* area : {&staging->up_, &staging->down_}) {
    if (absl::Status status = staging->Allocate(*area); !status.ok()) return status;
  }
  return staging;
}

absl::Status Staging::Allocate(Area& area) const {
  const absl::StatusOr<void*> pinned = cuda_->NewPinnedMemory(kStagingBytes);
  if (!pinned.ok()) return pinned.status();
  area.pinned = static_cast<unsigned char*>(*pinned);
  const absl::StatusOr<void*> device = cuda_->NewDeviceMemory(kStagingBytes);
  if (!device.ok()) return device.status();
  area.device = static_cast<unsigned char*>(*device);
  return absl::OkStatus();
}

Staging::~Staging() {
  for (const Area* area : {&up_, &down_}) {
    if (area->pinned != nullptr) cuda_->FreePinnedMemory(area->pinned);
    if (area->device != nullptr) cuda_->FreeDeviceMemory(area->device);
  }
}

void Staging::Reset() {
  up_.used_bytes = down_.used_bytes = 0;
  outputs_.clear();
}

int64_t Staging::Place(Area& area, const TensorPlace& tensor) {
  const int64_t bytes = tensor.device_bytes();
  if (bytes > kStagedTensorBytes || bytes > kStagingBytes - area.used_bytes) return -1;
  const int64_t offset = area.used_bytes;
  area.used_bytes = (offset + bytes + kDeviceAlignmentBytes - 1) & -kDeviceAlignmentBytes;
  return offset;
}

unsigned char* Staging::AddInput(const TensorPlace& tensor, const unsigned char* host) {
  const int64_t offset = Place(up_, tensor);
  if (offset < 0) return nullptr;
  CopyRows(up_.pinned + offset, tensor.pitch_bytes, host, tensor.row_bytes, tensor.row_bytes,
           tensor.rows);
  return up_.device + offset;
}

unsigned char* Staging::AddOutput(const TensorPlace& tensor, unsigned char* host) {
  const int64_t offset = Place(down_, tensor);
  if (offset < 0) return nullptr;
  outputs_.push_back({tensor, offset, host});
  return down_.device + offset;
}

void Staging::Drop(const unsigned char* host) {
  const auto dropped = [host](const Output& output) { return output.host == host; };
  outputs_.erase(std::remove_if(outputs_.begin(), outputs_.end(), dropped), outputs_.end());
}

void Staging::AppendUpload(std::vector<CudaCopy>& copies) const {
  if (up_.used_bytes == 0) return;
  copies.push_back({up_.device, 0, up_.pinned, 0, up_.used_bytes, 1});
}

void Staging::AppendDownload(std::vector<CudaCopy>& copies) const {
  if (outputs_.empty()) return;
  copies.push_back({down_.pinned, 0, down_.device, 0, down_.used_bytes, 1});
}

void Staging::Deliver() const {
  for (const Output& output : outputs_) {
    const TensorPlace& t = output.tensor;
    CopyRows(output.host, t.row_bytes, down_.pinned + output.offset_bytes, t.pitch_bytes,
             t.row_bytes, t.rows);
  }
}

}  // namespace attnd::server
