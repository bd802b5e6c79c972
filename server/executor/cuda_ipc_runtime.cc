// cuda_ipc.h on the driver, whose entry points the runtime finds: libcuda is not linked.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "server/executor/cuda_ipc.h"
#include "server/executor/cuda_runtime.h"

namespace attnd::server {
namespace {

struct Driver {
  decltype(&::cuMemImportFromShareableHandle) import = nullptr;
  decltype(&::cuMemAddressReserve) reserve = nullptr;
  decltype(&::cuMemMap) map = nullptr;
  decltype(&::cuMemSetAccess) set_access = nullptr;
  decltype(&::cuMemRelease) release = nullptr;
  decltype(&::cuMemUnmap) unmap = nullptr;
  decltype(&::cuMemAddressFree) free_address = nullptr;
  decltype(&::cuMemGetAddressRange) address_range = nullptr;
  decltype(&::cuPointerGetAttribute) pointer_attribute = nullptr;
};

template <typename Function>
absl::Status Find(const char* name, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  ATTND_CUDA_RETURN_IF_ERROR(
      cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result));
  if (result != cudaDriverEntryPointSuccess || found == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("the driver has no ", name, " (CUDA 12.0)"));
  }
  function = reinterpret_cast<Function>(found);
  return absl::OkStatus();
}

absl::StatusOr<Driver> FindDriver() {
  Driver driver;
  absl::Status status = Find("cuMemImportFromShareableHandle", driver.import);
  status.Update(Find("cuMemAddressReserve", driver.reserve));
  status.Update(Find("cuMemMap", driver.map));
  status.Update(Find("cuMemSetAccess", driver.set_access));
  status.Update(Find("cuMemRelease", driver.release));
  status.Update(Find("cuMemUnmap", driver.unmap));
  status.Update(Find("cuMemAddressFree", driver.free_address));
  status.Update(Find("cuMemGetAddressRange", driver.address_range));
  status.Update(Find("cuPointerGetAttribute", driver.pointer_attribute));
  if (!status.ok()) return status;
  return driver;
}

// The caller's fault, not the device's.
absl::Status Refused(const char* call, CUresult result) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const std::string text = absl::StrCat(call, ": error ", static_cast<int>(result), " of CUDA");
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return absl::ResourceExhaustedError(text);
  return absl::InvalidArgumentError(text);
}
absl::Status Refused(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();  // the next call is not to be blamed for it
  const std::string text = absl::StrCat(call, ": ", cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(text);
  return absl::InvalidArgumentError(text);
}

absl::StatusOr<CudaUuid> UuidOf(int ordinal) {
  cudaDeviceProp properties;
  ATTND_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, ordinal));
  CudaUuid uuid;
  static_assert(sizeof(properties.uuid.bytes) == sizeof(uuid));
  std::memcpy(uuid.data(), properties.uuid.bytes, uuid.size());
  return uuid;
}

CUdeviceptr Address(void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

class RuntimeIpc final : public CudaIpc {
 public:
  RuntimeIpc(int device, const CudaUuid& uuid, const Driver& driver)
      : device_(device), uuid_(uuid), driver_(driver) {}

  absl::StatusOr<CudaUuid> Uuid() override { return uuid_; }

  absl::StatusOr<void*> OpenMemory(const CudaIpcHandle& handle) override {
    ATTND_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_));
    cudaIpcMemHandle_t opaque;
    static_assert(sizeof(opaque) == sizeof(handle));
    std::memcpy(&opaque, handle.data(), sizeof(opaque));
    void* memory = nullptr;
    absl::Status status =
        Refused("cudaIpcOpenMemHandle",
                cudaIpcOpenMemHandle(&memory, opaque, cudaIpcMemLazyEnablePeerAccess));
    if (!status.ok()) return status;
    return memory;
  }
  void CloseMemory(void* memory) override {
    cudaSetDevice(device_);
    cudaIpcCloseMemHandle(memory);
  }

  absl::StatusOr<void*> MapMemory(int fd, int64_t size_bytes) override {
    ATTND_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_));
    CUmemGenericAllocationHandle allocation = 0;
    absl::Status status =
        Refused("cuMemImportFromShareableHandle",
                driver_.import(&allocation, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    if (!status.ok()) return status;
    absl::StatusOr<void*> memory = MapAllocation(allocation, static_cast<size_t>(size_bytes));
    driver_.release(allocation);  // the mapping holds it
    return memory;
  }
  void UnmapMemory(void* memory, int64_t size_bytes) override {
    cudaSetDevice(device_);
    driver_.unmap(Address(memory), static_cast<size_t>(size_bytes));
    driver_.free_address(Address(memory), static_cast<size_t>(size_bytes));
  }

  absl::StatusOr<CudaExtent> ExtentOf(void* memory) override {
    ATTND_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_));
    CUdeviceptr base = 0;
    size_t size_bytes = 0;
    absl::Status status =
        Refused("cuMemGetAddressRange", driver_.address_range(&base, &size_bytes, Address(memory)));
    int ordinal = -1;
    status.Update(Refused(
        "cuPointerGetAttribute",
        driver_.pointer_attribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, Address(memory))));
    if (!status.ok()) return status;
    const absl::StatusOr<CudaUuid> uuid = UuidOf(ordinal);
    if (!uuid.ok()) return uuid.status();
    return CudaExtent{reinterpret_cast<unsigned char*>(base), static_cast<int64_t>(size_bytes),
                      *uuid};
  }

  absl::StatusOr<CudaEvent> OpenEvent(const CudaIpcHandle& handle) override {
    ATTND_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_));
    cudaIpcEventHandle_t opaque;
    static_assert(sizeof(opaque) == sizeof(handle));
    std::memcpy(&opaque, handle.data(), sizeof(opaque));
    cudaEvent_t event = nullptr;
    absl::Status status = Refused("cudaIpcOpenEventHandle", cudaIpcOpenEventHandle(&event, opaque));
    if (!status.ok()) return status;
    return event;
  }
  void CloseEvent(CudaEvent event) override {
    cudaSetDevice(device_);
    cudaEventDestroy(static_cast<cudaEvent_t>(event));
  }

 private:
  absl::StatusOr<void*> MapAllocation(CUmemGenericAllocationHandle allocation, size_t size_bytes) {
    CUdeviceptr at = 0;
    absl::Status status = Refused("cuMemAddressReserve", driver_.reserve(&at, size_bytes, 0, 0, 0));
    if (!status.ok()) return status;
    status = Refused("cuMemMap", driver_.map(at, size_bytes, 0, allocation, 0));
    if (!status.ok()) {
      driver_.free_address(at, size_bytes);
      return status;
    }
    CUmemAccessDesc access = {};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device_;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    status = Refused("cuMemSetAccess", driver_.set_access(at, size_bytes, &access, 1));
    if (!status.ok()) {
      UnmapMemory(reinterpret_cast<void*>(at), static_cast<int64_t>(size_bytes));
      return status;
    }
    return reinterpret_cast<void*>(at);
  }

  const int device_;
  const CudaUuid uuid_;
  const Driver driver_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<CudaIpc>> OpenCudaIpc(int ordinal) {
  const absl::StatusOr<Driver> driver = FindDriver();
  if (!driver.ok()) return driver.status();
  const absl::StatusOr<CudaUuid> uuid = UuidOf(ordinal);
  if (!uuid.ok()) return uuid.status();
  return std::make_shared<RuntimeIpc>(ordinal, *uuid, *driver);
}

}  // namespace attnd::server
