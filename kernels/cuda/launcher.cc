#include "kernels/cuda/launcher.h"

#include <utility>

namespace attnd::kernels::cuda {

absl::StatusOr<std::unique_ptr<Launcher>> Launcher::Create(InstanceList list) {
  std::unique_ptr<Launcher> launcher(new Launcher);
  int max_shared_bytes = 0;
  ATTND_CUDA_RETURN_IF_ERROR(cudaGetDevice(&launcher->device_));
  ATTND_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(
      &launcher->multiprocessors_, cudaDevAttrMultiProcessorCount, launcher->device_));
  ATTND_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(
      &max_shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, launcher->device_));
  for (int i = 0; i < list.count; ++i) {
    const Instance* instance = list.begin[i];
    if (instance->shared_bytes > max_shared_bytes) continue;
    ATTND_CUDA_RETURN_IF_ERROR(cudaFuncSetAttribute(
        instance->symbol, cudaFuncAttributeMaxDynamicSharedMemorySize, instance->shared_bytes));
    launcher->instances_[instance->name] = instance;
  }
  absl::StatusOr<std::unique_ptr<LaunchMemory>> memory = LaunchMemory::Create();
  if (!memory.ok()) return memory.status();
  launcher->memory_ = *std::move(memory);
  return launcher;
}

}  // namespace attnd::kernels::cuda
