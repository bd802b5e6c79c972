#include "kernels/cuda/generic/generic_backend.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/generic/instance.h"
#include "kernels/cuda/launch_list.h"
#include "kernels/cuda/launch_memory.h"

namespace attnd::kernels::cuda {
namespace {

class GenericBackend final : public Backend {
 public:
  GenericBackend(std::unique_ptr<LaunchMemory> memory, int device, int multiprocessors,
                 std::map<std::string, const Instance*> instances)
      : memory_(std::move(memory)),
        device_(device),
        multiprocessors_(multiprocessors),
        instances_(std::move(instances)) {}

  absl::string_view Name() const override { return kGenericName; }

  absl::Status Supports(const AttentionProblem& p) const override {
    if (absl::Status status = CheckLengths(p); !status.ok()) return status;
    const std::string name = KernelName(KeyOf(p), "generic");
    if (!instances_.contains(name)) {
      return absl::UnimplementedError(absl::StrCat("this device or build has no kernel ", name));
    }
    return absl::OkStatus();
  }

  KernelPlan Plan(const AttentionProblem& p) const override {
    KernelPlan plan;
    plan.key = KeyOf(p);
    plan.kernel = KernelName(plan.key, "generic");
    const Instance& instance = *instances_.at(plan.kernel);
    plan.q_tile = instance.q_tile;
    plan.kv_tile = instance.kv_tile;
    return plan;
  }

  int64_t WorkspaceBytes(absl::Span<const AttentionTask>) const override { return 0; }

  absl::Status Run(absl::Span<const AttentionTask> tasks, void*, Stream stream) override {
    ATTND_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_));
    std::map<const Instance*, std::vector<ProblemDesc>> launches;
    for (const AttentionTask& task : tasks) {
      if (task.problem.empty()) continue;
      const Instance* instance = instances_.at(task.plan.kernel);
      launches[instance].push_back(Describe(task, instance->q_tile));
    }
    for (auto& [instance, problems] : launches) {
      if (absl::Status status = Launch(*instance, problems, static_cast<cudaStream_t>(stream));
          !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Launch(const Instance& instance, std::vector<ProblemDesc>& problems,
                      cudaStream_t stream) {
    LaunchParams params = {};
    params.n_items = DealItems(problems, instance.q_tile);
    params.n_problems = static_cast<int>(problems.size());
    params.next_item = memory_->next_item();
    params.poisoned_tiles = memory_->poisoned_tiles();
    if (params.n_problems <= kInlineProblems) {
      std::copy(problems.begin(), problems.end(), params.inline_problems);
    } else {
      absl::StatusOr<const void*> uploaded =
          memory_->Upload(problems.data(), problems.size() * sizeof(ProblemDesc), stream);
      if (!uploaded.ok()) return uploaded.status();
      params.problems = static_cast<const ProblemDesc*>(*uploaded);
    }
    const int64_t slots = int64_t{multiprocessors_} * instance.blocks_per_multiprocessor;
    const int grid = static_cast<int>(std::min(params.n_items, slots));
    void* arguments[] = {&params};
    ATTND_CUDA_RETURN_IF_ERROR(cudaLaunchKernel(instance.symbol, dim3(grid), dim3(instance.threads),
                                                arguments, instance.shared_bytes, stream));
    return absl::OkStatus();
  }

  const std::unique_ptr<LaunchMemory> memory_;
  const int device_;
  const int multiprocessors_;
  const std::map<std::string, const Instance*> instances_;
};

absl::StatusOr<std::unique_ptr<Backend>> Create() {
  int device = 0;
  int multiprocessors = 0;
  ATTND_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  ATTND_CUDA_RETURN_IF_ERROR(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  absl::StatusOr<std::map<std::string, const Instance*>> instances =
      LoadInstances(generic::Instances(), device);
  if (!instances.ok()) return instances.status();
  absl::StatusOr<std::unique_ptr<LaunchMemory>> memory = LaunchMemory::Create();
  if (!memory.ok()) return memory.status();
  return std::make_unique<GenericBackend>(std::move(*memory), device, multiprocessors,
                                          *std::move(instances));
}

}  // namespace

absl::Status GenericAvailable() {
  int major = 0;
  ATTND_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  if (major < 8) {
    return absl::FailedPreconditionError(
        absl::StrCat("device 0 has compute capability ", major, ".x; 8.0 is needed"));
  }
  return absl::OkStatus();
}

std::unique_ptr<Backend> CreateGeneric(const BackendOptions&) {
  absl::StatusOr<std::unique_ptr<Backend>> backend = Create();
  return backend.ok() ? std::move(*backend) : nullptr;
}

}  // namespace attnd::kernels::cuda
