#include "server/executor/devices.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/registry.h"
#include "server/executor/cpu_device.h"
#include "server/executor/cuda_device.h"
#include "server/executor/cuda_fault.h"
#include "server/executor/cuda_runtime.h"

namespace attnd::server {
namespace {

using kernels::BackendEntry;
using kernels::MemoryKind;

std::string Environment(const char* name) {
  // Nothing here sets variables. NOLINTNEXTLINE(concurrency-mt-unsafe)
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Null: no such backend, which whoever creates it will say.
const BackendEntry* FindBackend(absl::string_view name) {
  for (const BackendEntry& entry : kernels::BackendEntries()) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

bool IsFor(absl::string_view backend, MemoryKind memory) {
  const BackendEntry* const entry = FindBackend(backend);
  return entry != nullptr && entry->memory == memory;
}

absl::StatusOr<int> ParseDevice(absl::string_view name, const absl::StatusOr<int>& gpus) {
  if (name == "cpu") return kCpuOrdinal;
  int ordinal = 0;
  absl::string_view number = name;
  if (!absl::ConsumePrefix(&number, "cuda:") || !absl::SimpleAtoi(number, &ordinal) ||
      ordinal < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", name, "\" is no device; devices are auto, cpu, cuda:0, cuda:1 and so on"));
  }
  if (!gpus.ok()) {
    return absl::Status(gpus.status().code(),
                        absl::StrCat("device cuda:", ordinal, ": ", gpus.status().message()));
  }
  if (ordinal >= *gpus) {
    return absl::NotFoundError(absl::StrCat("device cuda:", ordinal,
                                            " does not exist; this process sees ", *gpus,
                                            *gpus == 1 ? " GPU" : " GPUs"));
  }
  return ordinal;
}

absl::StatusOr<std::unique_ptr<kernels::Backend>> CreateBackend(const BackendEntry& entry,
                                                                const std::string& device) {
  std::unique_ptr<kernels::Backend> backend = entry.create({});
  if (backend == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("backend ", entry.name, " cannot be started on ", device));
  }
  return backend;
}

// The first backend for GPUs that is the forced one, or runs.
absl::StatusOr<const BackendEntry*> ChooseForGpu(absl::string_view forced) {
  absl::Status why_not = absl::UnimplementedError("this build has no backend for GPUs");
  for (const BackendEntry& entry : kernels::BackendEntries()) {
    if (entry.memory != MemoryKind::kDevice || (!forced.empty() && forced != entry.name)) continue;
    why_not = entry.available();
    if (why_not.ok()) return &entry;
  }
  if (!forced.empty() && !IsFor(forced, MemoryKind::kDevice)) {
    return absl::InvalidArgumentError(absl::StrCat("backend ", forced, " does not run on a GPU"));
  }
  return why_not;
}

// For the log. Nothing where the build has no CUDA, or the CPU was asked for.
std::string WhyNoGpu(const absl::StatusOr<int>& gpus) {
  if (gpus.ok() || absl::IsUnimplemented(gpus.status())) return "";
  return absl::StrCat("no GPU: ", gpus.status().message());
}

absl::StatusOr<std::unique_ptr<Device>> CreateGpuDevice(int ordinal, absl::string_view backend,
                                                        absl::string_view forced_by,
                                                        int64_t device_bytes) {
  absl::StatusOr<Gpu> gpu = OpenGpu(ordinal, backend, forced_by);
  if (!gpu.ok()) return gpu.status();
  CudaDeviceOptions options;
  options.device_bytes = device_bytes;
  options.ipc = std::move(gpu->ipc);
  return MakeCudaDevice(std::move(gpu->cuda), std::move(gpu->backends), gpu->description, options);
}

}  // namespace

absl::StatusOr<std::vector<int>> ResolveDevices(absl::string_view devices,
                                                absl::string_view backend,
                                                const absl::StatusOr<int>& gpus) {
  if (devices == "auto") {
    const bool wants_gpu = IsFor(backend, MemoryKind::kDevice);
    if (wants_gpu && !gpus.ok()) return gpus.status();
    if (!gpus.ok() || (!backend.empty() && !wants_gpu)) return std::vector<int>{kCpuOrdinal};
    std::vector<int> all(static_cast<size_t>(*gpus));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  std::vector<int> ordinals;
  for (const absl::string_view name : absl::StrSplit(devices, ',')) {
    const absl::StatusOr<int> ordinal = ParseDevice(name, gpus);
    if (!ordinal.ok()) return ordinal.status();
    if (std::find(ordinals.begin(), ordinals.end(), *ordinal) != ordinals.end()) {
      return absl::InvalidArgumentError(absl::StrCat("device ", name, " is named twice"));
    }
    ordinals.push_back(*ordinal);
  }
  return ordinals;
}

absl::StatusOr<Gpu> OpenGpu(int ordinal, absl::string_view backend, absl::string_view forced_by) {
  Gpu gpu;
  DeviceDescription& description = gpu.description;
  description.id = absl::StrCat("cuda:", ordinal);
  absl::StatusOr<std::shared_ptr<Cuda>> cuda = OpenCuda(ordinal);
  if (!cuda.ok()) return cuda.status();
  cuda = WithFault(*std::move(cuda), Environment("ATTND_FAULT"));
  if (!cuda.ok()) return cuda.status();
  gpu.cuda = *std::move(cuda);
  const absl::StatusOr<CudaDeviceFacts> facts = ReadCudaFacts(ordinal);
  if (!facts.ok()) return facts.status();
  const absl::StatusOr<const BackendEntry*> entry = ChooseForGpu(backend);
  if (!entry.ok()) return entry.status();
  for (int i = 0; i < kRunStreams; ++i) {
    auto created = CreateBackend(**entry, description.id);
    if (!created.ok()) return created.status();
    gpu.backends.push_back(*std::move(created));
  }
  if (auto ipc = OpenCudaIpc(ordinal); ipc.ok()) gpu.ipc = *std::move(ipc);
  description.name = facts->name;
  description.processors = facts->multiprocessors;
  for (const BackendEntry& other : kernels::BackendEntries()) {
    if (other.memory == MemoryKind::kDevice && other.available().ok()) {
      description.backends.push_back(other.name);
    }
  }
  description.backend = (*entry)->name;
  description.backend_reason =
      backend.empty() ? "first available" : absl::StrCat("forced by ", forced_by);
  return gpu;
}

absl::StatusOr<std::vector<std::unique_ptr<Device>>> CreateDevices(const DeviceOptions& options) {
  const std::string variable = options.backend.empty() ? Environment("ATTND_BACKEND") : "";
  const std::string backend = options.backend.empty() ? variable : options.backend;
  absl::StatusOr<int> gpus = CountCudaDevices();
  // GPUs that no backend of this build can use are none.
  if (const auto usable = ChooseForGpu(""); gpus.ok() && !usable.ok()) gpus = usable.status();
  const absl::StatusOr<std::vector<int>> ordinals = ResolveDevices(options.devices, backend, gpus);
  if (!ordinals.ok()) return ordinals.status();
  std::vector<std::unique_ptr<Device>> devices;
  for (const int ordinal : *ordinals) {
    const bool is_cpu = ordinal == kCpuOrdinal;
    // A backend is forced on the devices that it is for.
    absl::StatusOr<std::unique_ptr<Device>> device =
        is_cpu ? CreateCpuDevice(options.backend, options.threads, WhyNoGpu(gpus))
               : CreateGpuDevice(ordinal, backend, variable.empty() ? "name" : "ATTND_BACKEND",
                                 options.device_bytes);
    if (!device.ok()) return device.status();
    devices.push_back(*std::move(device));
  }
  return devices;
}

}  // namespace attnd::server
