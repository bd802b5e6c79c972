#include "kernels/cuda/generic/generic_backend.h"

#include <cuda_runtime_api.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/generic/instance.h"
#include "kernels/cuda/launch_list.h"
#include "kernels/cuda/launcher.h"

namespace attnd::kernels::cuda {
namespace {

class GenericBackend final : public Backend {
 public:
  explicit GenericBackend(std::unique_ptr<Launcher> launcher) : launcher_(std::move(launcher)) {}

  absl::string_view Name() const override { return kGenericName; }

  absl::Status Supports(const AttentionProblem& p) const override {
    if (absl::Status status = CheckLengths(p); !status.ok()) return status;
    const std::string name = KernelName(KeyOf(p), "generic");
    if (!launcher_->instances().contains(name)) {
      return absl::UnimplementedError(absl::StrCat("this device or build has no kernel ", name));
    }
    return absl::OkStatus();
  }

  KernelPlan Plan(const AttentionProblem& p) const override {
    KernelPlan plan;
    plan.key = KeyOf(p);
    plan.kernel = KernelName(plan.key, "generic");
    const Instance& instance = *launcher_->instances().at(plan.kernel);
    plan.q_tile = instance.q_tile;
    plan.kv_tile = instance.kv_tile;
    return plan;
  }

  int64_t WorkspaceBytes(absl::Span<const AttentionTask>) const override { return 0; }

  absl::Status Run(absl::Span<const AttentionTask> tasks, void*, Stream stream) override {
    if (absl::Status status = launcher_->MakeCurrent(); !status.ok()) return status;
    std::map<const Instance*, std::vector<ProblemDesc>> launches;
    for (const AttentionTask& task : tasks) {
      if (task.problem.empty()) continue;
      const Instance* instance = launcher_->instances().at(task.plan.kernel);
      launches[instance].push_back(Describe(task, instance->q_tile));
    }
    for (auto& [instance, problems] : launches) {
      if (absl::Status status = launcher_->Launch<LaunchParams>(*instance, problems,
                                                                static_cast<cudaStream_t>(stream));
          !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<Launcher> launcher_;
};

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
  absl::StatusOr<std::unique_ptr<Launcher>> launcher = Launcher::Create(generic::Instances());
  if (!launcher.ok()) return nullptr;
  return std::make_unique<GenericBackend>(*std::move(launcher));
}

}  // namespace attnd::kernels::cuda
