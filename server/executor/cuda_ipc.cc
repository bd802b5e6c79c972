#include "server/executor/cuda_ipc.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace attnd::server {
namespace {

using regions::RegisterCudaFrame;

// Opened or mapped memory of another process.
class Opened {
 public:
  static absl::StatusOr<Opened> Open(std::shared_ptr<CudaIpc> ipc, const RegisterCudaFrame& offer,
                                     int fd) {
    const absl::StatusOr<void*> memory =
        fd < 0 ? ipc->OpenMemory(offer.memory_handle) : ipc->MapMemory(fd, offer.size_bytes);
    if (!memory.ok()) return memory.status();
    return Opened(std::move(ipc), *memory, fd < 0 ? 0 : offer.size_bytes);
  }
  Opened(Opened&& other) noexcept
      : ipc_(std::move(other.ipc_)), memory_(other.memory_), mapped_bytes_(other.mapped_bytes_) {}
  Opened& operator=(Opened&&) = delete;
  ~Opened() {
    if (ipc_ == nullptr) return;
    mapped_bytes_ > 0 ? ipc_->UnmapMemory(memory_, mapped_bytes_) : ipc_->CloseMemory(memory_);
  }

  unsigned char* base() const { return static_cast<unsigned char*>(memory_); }
  const std::shared_ptr<CudaIpc>& ipc() const { return ipc_; }

  // What of it may be used.
  absl::StatusOr<int64_t> SizeBytes(const CudaExtent& extent) const {
    if (base() < extent.base || base() >= extent.base + extent.size_bytes) {
      return absl::InvalidArgumentError("the driver knows no allocation at the memory's address");
    }
    const int64_t rest_bytes = extent.size_bytes - (base() - extent.base);
    return mapped_bytes_ > 0 ? std::min(mapped_bytes_, rest_bytes) : rest_bytes;
  }

 private:
  Opened(std::shared_ptr<CudaIpc> ipc, void* memory, int64_t mapped_bytes)
      : ipc_(std::move(ipc)), memory_(memory), mapped_bytes_(mapped_bytes) {}

  std::shared_ptr<CudaIpc> ipc_;  // null: moved from
  void* const memory_;
  const int64_t mapped_bytes_;  // 0: opened by its handle
};

class ImportedMemory final : public GpuMemory {
 public:
  ImportedMemory(Opened opened, int64_t size_bytes, int device, CudaEvent ready)
      : GpuMemory(opened.base(), size_bytes, device, ready), opened_(std::move(opened)) {}
  ~ImportedMemory() override {
    if (ready() != nullptr) opened_.ipc()->CloseEvent(ready());
  }

 private:
  const Opened opened_;
};

absl::Status CheckOffer(const RegisterCudaFrame& offer, int fd) {
  if (fd >= 0 && offer.size_bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("size_bytes is ", offer.size_bytes,
                                                   "; with a descriptor it must be more than 0"));
  }
  if (fd < 0 && offer.size_bytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("size_bytes is ", offer.size_bytes,
                     "; without a descriptor it must be 0, for the driver knows it"));
  }
  if (offer.has_event > 1 || offer.reserved != 0) {
    return absl::InvalidArgumentError(absl::StrCat("has_event is ", offer.has_event,
                                                   ", must be 0 or 1; reserved is ", offer.reserved,
                                                   ", must be 0"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string UuidText(const CudaUuid& uuid) {
  const std::string hex = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(uuid.data()), uuid.size()));
  return absl::StrCat("GPU-", hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-",
                      hex.substr(16, 4), "-", hex.substr(20));
}

absl::StatusOr<const CudaImporter::Gpu*> CudaImporter::Find(const CudaUuid& uuid) const {
  std::string served;
  for (const Gpu& gpu : gpus_) {
    const absl::StatusOr<CudaUuid> own = gpu.ipc->Uuid();
    if (!own.ok()) return own.status();
    if (*own == uuid) return &gpu;
    absl::StrAppend(&served, served.empty() ? "" : ", ", gpu.id, " (", UuidText(*own), ")");
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the memory is on ", UuidText(uuid), ", which this server does not serve; it has ", served));
}

absl::StatusOr<std::unique_ptr<GpuMemory>> CudaImporter::Import(const RegisterCudaFrame& offer,
                                                                int fd) {
  if (absl::Status status = CheckOffer(offer, fd); !status.ok()) return status;
  const absl::StatusOr<const Gpu*> gpu = Find(offer.gpu_uuid);
  if (!gpu.ok()) return gpu.status();
  absl::StatusOr<Opened> opened = Opened::Open((*gpu)->ipc, offer, fd);
  if (!opened.ok()) return opened.status();
  const absl::StatusOr<CudaExtent> extent = (*gpu)->ipc->ExtentOf(opened->base());
  if (!extent.ok()) return extent.status();
  if (extent->gpu != offer.gpu_uuid) {
    return absl::InvalidArgumentError(absl::StrCat("the memory is on ", UuidText(extent->gpu),
                                                   ", gpu_uuid says ", UuidText(offer.gpu_uuid),
                                                   " (", (*gpu)->id, ")"));
  }
  const absl::StatusOr<int64_t> size_bytes = opened->SizeBytes(*extent);
  if (!size_bytes.ok()) return size_bytes.status();
  CudaEvent ready = nullptr;
  if (offer.has_event == 1) {
    const absl::StatusOr<CudaEvent> event = (*gpu)->ipc->OpenEvent(offer.event_handle);
    if (!event.ok()) return event.status();
    ready = *event;
  }
  return std::make_unique<ImportedMemory>(*std::move(opened), *size_bytes, (*gpu)->device, ready);
}

}  // namespace attnd::server
