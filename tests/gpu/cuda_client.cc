#include "tests/gpu/cuda_client.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "server/regions/protocol/unique_fd.h"

namespace attnd::testing {
namespace {

template <typename Function>
absl::Status Find(const char* name, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  ATTND_CUDA_RETURN_IF_ERROR(
      cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result));
  if (found == nullptr) return absl::FailedPreconditionError(absl::StrCat("no ", name));
  function = reinterpret_cast<Function>(found);
  return absl::OkStatus();
}

absl::Status Driver(const char* call, CUresult result) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": error ", static_cast<int>(result)));
}

CUmemLocation LocationOf(int ordinal) {
  CUmemLocation location = {};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = ordinal;
  return location;
}

template <typename Opaque>
std::array<unsigned char, 64> BytesOf(const Opaque& opaque) {
  std::array<unsigned char, 64> bytes;
  static_assert(sizeof(opaque) == sizeof(bytes));
  std::memcpy(bytes.data(), &opaque, sizeof(bytes));
  return bytes;
}

void CUDART_CB CallOnce(void* opaque) {
  const std::unique_ptr<std::function<void()>> function(
      static_cast<std::function<void()>*>(opaque));
  (*function)();
}

class Allocation : public CudaAllocation {
 public:
  ~Allocation() override {
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
    if (pinned_ != nullptr) cudaFreeHost(pinned_);
    if (event_ != nullptr) cudaEventDestroy(event_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  absl::Status Prepare(int ordinal) {
    cudaDeviceProp properties;
    ATTND_CUDA_RETURN_IF_ERROR(cudaSetDevice(ordinal));
    ATTND_CUDA_RETURN_IF_ERROR(cudaFree(nullptr));
    ATTND_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, ordinal));
    std::memcpy(exported_.gpu_uuid.data(), properties.uuid.bytes, exported_.gpu_uuid.size());
    ATTND_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    ATTND_CUDA_RETURN_IF_ERROR(
        cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventInterprocess));
    return absl::OkStatus();
  }
  virtual absl::Status Allocate(int64_t size_bytes, int ordinal) = 0;

  const CudaMemory& exported() const override { return exported_; }

  absl::StatusOr<std::array<unsigned char, 64>> ExportEvent() override {
    cudaIpcEventHandle_t handle;
    ATTND_CUDA_RETURN_IF_ERROR(cudaIpcGetEventHandle(&handle, event_));
    return BytesOf(handle);
  }

  absl::Status CopyBehind(std::function<void()> first, void* to, const void* from,
                          int64_t size_bytes) override {
    // From memory that is not pinned, the copy would wait here for the function.
    ATTND_CUDA_RETURN_IF_ERROR(cudaMallocHost(&pinned_, static_cast<size_t>(size_bytes)));
    std::memcpy(pinned_, from, static_cast<size_t>(size_bytes));
    ATTND_CUDA_RETURN_IF_ERROR(cudaLaunchHostFunc(
        stream_, CallOnce, std::make_unique<std::function<void()>>(std::move(first)).release()));
    ATTND_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(to, pinned_, static_cast<size_t>(size_bytes),
                                               cudaMemcpyHostToDevice, stream_));
    ATTND_CUDA_RETURN_IF_ERROR(cudaEventRecord(event_, stream_));
    return absl::OkStatus();
  }
  absl::Status CopyIn(void* to, const void* from, int64_t size_bytes) override {
    ATTND_CUDA_RETURN_IF_ERROR(
        cudaMemcpy(to, from, static_cast<size_t>(size_bytes), cudaMemcpyHostToDevice));
    // It may return when the bytes are on their way only, and the server has no part in our
    // streams.
    ATTND_CUDA_RETURN_IF_ERROR(cudaDeviceSynchronize());
    return absl::OkStatus();
  }
  absl::Status CopyOut(void* to, const void* from, int64_t size_bytes) override {
    ATTND_CUDA_RETURN_IF_ERROR(
        cudaMemcpy(to, from, static_cast<size_t>(size_bytes), cudaMemcpyDeviceToHost));
    return absl::OkStatus();
  }

 protected:
  CudaMemory exported_;

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
  void* pinned_ = nullptr;
};

class Malloc final : public Allocation {
 public:
  ~Malloc() override { cudaFree(exported_.base); }

  absl::Status Allocate(int64_t size_bytes, int) override {
    ATTND_CUDA_RETURN_IF_ERROR(cudaMalloc(&exported_.base, static_cast<size_t>(size_bytes)));
    exported_.size_bytes = size_bytes;
    cudaIpcMemHandle_t handle;
    ATTND_CUDA_RETURN_IF_ERROR(cudaIpcGetMemHandle(&handle, exported_.base));
    exported_.handle = BytesOf(handle);
    return absl::OkStatus();
  }
};

class Vmm final : public Allocation {
 public:
  ~Vmm() override {
    if (exported_.base == nullptr) return;
    const auto at = reinterpret_cast<CUdeviceptr>(exported_.base);
    const auto size_bytes = static_cast<size_t>(exported_.size_bytes);
    unmap_(at, size_bytes);
    free_(at, size_bytes);
  }

  absl::Status Allocate(int64_t size_bytes, int ordinal) override {
    decltype(&::cuMemGetAllocationGranularity) granularity = nullptr;
    decltype(&::cuMemCreate) create = nullptr;
    decltype(&::cuMemExportToShareableHandle) export_handle = nullptr;
    decltype(&::cuMemRelease) release = nullptr;
    absl::Status status = Find("cuMemGetAllocationGranularity", granularity);
    status.Update(Find("cuMemCreate", create));
    status.Update(Find("cuMemExportToShareableHandle", export_handle));
    status.Update(Find("cuMemRelease", release));
    if (!status.ok()) return status;
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = LocationOf(ordinal);
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    size_t step = 0;
    status = Driver("cuMemGetAllocationGranularity",
                    granularity(&step, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    if (!status.ok()) return status;
    const size_t bytes = (static_cast<size_t>(size_bytes) + step - 1) / step * step;
    CUmemGenericAllocationHandle allocation = 0;
    status = Driver("cuMemCreate", create(&allocation, bytes, &properties, 0));
    if (!status.ok()) return status;
    int fd = -1;
    status = Driver("cuMemExportToShareableHandle",
                    export_handle(&fd, allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    fd_ = regions::UniqueFd(fd);
    exported_.fd = fd;
    if (status.ok()) status = Map(allocation, bytes, ordinal);
    release(allocation);  // the mapping and the descriptor hold it
    return status;
  }

 private:
  absl::Status Map(CUmemGenericAllocationHandle allocation, size_t bytes, int ordinal) {
    decltype(&::cuMemAddressReserve) reserve = nullptr;
    decltype(&::cuMemMap) map = nullptr;
    decltype(&::cuMemSetAccess) set_access = nullptr;
    absl::Status status = Find("cuMemAddressReserve", reserve);
    status.Update(Find("cuMemMap", map));
    status.Update(Find("cuMemSetAccess", set_access));
    status.Update(Find("cuMemUnmap", unmap_));
    status.Update(Find("cuMemAddressFree", free_));
    if (!status.ok()) return status;
    CUdeviceptr at = 0;
    status = Driver("cuMemAddressReserve", reserve(&at, bytes, 0, 0, 0));
    if (status.ok()) status = Driver("cuMemMap", map(at, bytes, 0, allocation, 0));
    if (!status.ok()) return status;
    exported_.base = reinterpret_cast<void*>(at);
    exported_.size_bytes = static_cast<int64_t>(bytes);
    CUmemAccessDesc access = {};
    access.location = LocationOf(ordinal);
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return Driver("cuMemSetAccess", set_access(at, bytes, &access, 1));
  }

  regions::UniqueFd fd_;
  decltype(&::cuMemUnmap) unmap_ = nullptr;
  decltype(&::cuMemAddressFree) free_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaAllocation>> CudaAllocation::New(CudaKind kind,
                                                                    int64_t size_bytes,
                                                                    int ordinal) {
  std::unique_ptr<Allocation> allocation;
  if (kind == CudaKind::kMalloc) {
    allocation = std::make_unique<Malloc>();
  } else {
    allocation = std::make_unique<Vmm>();
  }
  absl::Status status = allocation->Prepare(ordinal);
  if (status.ok()) status = allocation->Allocate(size_bytes, ordinal);
  if (!status.ok()) return status;
  return allocation;
}

int CountGpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

}  // namespace attnd::testing
