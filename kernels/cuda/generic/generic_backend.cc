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
#include "kernels/cuda/launch_memory.h"

namespace attnd::kernels::cuda {
namespace {

using generic::Instance;

// Lengths and bands are 32-bit in the kernel, with room for sums of two.
constexpr int64_t kMaxLength = int64_t{1} << 30;

int ClampBand(int64_t bound) {
  return static_cast<int>(std::clamp(bound, -kMaxLength, kMaxLength - 1));
}

bool Aligned16(const void* pointer, const Strides& strides, int64_t element_bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 &&
         strides.batch * element_bytes % 16 == 0 && strides.head * element_bytes % 16 == 0 &&
         strides.row * element_bytes % 16 == 0;
}

TensorDesc Describe(const Strides& strides) { return {strides.batch, strides.head, strides.row}; }

ProblemDesc Describe(const AttentionTask& task, int q_tile) {
  const AttentionProblem& p = task.problem;
  const AttentionArgs& a = task.args;
  const int64_t element_bytes = SizeBytes(p.dtype);
  const Band band = p.mask.Resolve(p.q_len, p.kv_len);
  ProblemDesc d = {};
  d.q = a.q;
  d.k = a.k;
  d.v = a.v;
  d.o = a.o;
  d.lse = a.lse;
  d.alibi_slopes = p.alibi ? a.alibi_slopes : nullptr;
  d.q_desc = Describe(a.q_strides);
  d.k_desc = Describe(a.k_strides);
  d.v_desc = Describe(a.v_strides);
  d.o_desc = Describe(a.o_strides);
  d.lse_batch_stride = a.lse_batch_stride;
  d.lse_head_stride = a.lse_head_stride;
  d.batch = static_cast<int>(p.batch);
  d.q_heads = static_cast<int>(p.q_heads);
  d.group = static_cast<int>(p.group());
  d.q_len = static_cast<int>(p.q_len);
  d.kv_len = static_cast<int>(p.kv_len);
  d.head_dim = static_cast<int>(p.head_dim);
  d.n_q_tiles = static_cast<int>((p.q_len + q_tile - 1) / q_tile);
  d.band_lo = ClampBand(band.lo);
  d.band_hi = ClampBand(band.hi);
  d.scale = p.scale;
  d.softcap = p.softcap;
  d.aligned =
      Aligned16(a.q, a.q_strides, element_bytes) && Aligned16(a.k, a.k_strides, element_bytes) &&
      Aligned16(a.v, a.v_strides, element_bytes) && Aligned16(a.o, a.o_strides, element_bytes);
  return d;
}

// Keys that the problem's costliest tile walks through: what "longest first" sorts by.
int64_t TileKeys(const ProblemDesc& d, int q_tile) {
  const int64_t width = int64_t{d.band_hi} - d.band_lo + q_tile;
  return std::min<int64_t>(d.kv_len, std::max<int64_t>(width, 0));
}

// Problems of one launch, with their places in its work list. Returns the number of items.
int64_t DealItems(std::vector<ProblemDesc>& problems, int q_tile) {
  std::stable_sort(problems.begin(), problems.end(),
                   [q_tile](const ProblemDesc& a, const ProblemDesc& b) {
                     return TileKeys(a, q_tile) > TileKeys(b, q_tile);
                   });
  int64_t items = 0;
  for (ProblemDesc& d : problems) {
    d.first_item = items;
    items += int64_t{d.n_q_tiles} * d.batch * d.q_heads;
  }
  return items;
}

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
    for (const auto& [name, value] :
         {std::pair{"q_len", p.q_len}, std::pair{"kv_len", p.kv_len}, std::pair{"batch", p.batch},
          std::pair{"q_heads", p.q_heads}}) {
      if (value >= kMaxLength) {
        return absl::UnimplementedError(
            absl::StrCat(name, " is ", value, "; these kernels take less than ", kMaxLength));
      }
    }
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
      absl::StatusOr<const ProblemDesc*> uploaded = memory_->Upload(problems, stream);
      if (!uploaded.ok()) return uploaded.status();
      params.problems = *uploaded;
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
  int max_shared_bytes = 0;
  ATTND_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  ATTND_CUDA_RETURN_IF_ERROR(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  ATTND_CUDA_RETURN_IF_ERROR(
      cudaDeviceGetAttribute(&max_shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  std::map<std::string, const Instance*> instances;
  const generic::InstanceList list = generic::Instances();
  for (int i = 0; i < list.count; ++i) {
    const Instance* instance = list.begin[i];
    if (instance->shared_bytes > max_shared_bytes) continue;
    ATTND_CUDA_RETURN_IF_ERROR(cudaFuncSetAttribute(
        instance->symbol, cudaFuncAttributeMaxDynamicSharedMemorySize, instance->shared_bytes));
    instances[instance->name] = instance;
  }
  absl::StatusOr<std::unique_ptr<LaunchMemory>> memory = LaunchMemory::Create();
  if (!memory.ok()) return memory.status();
  return std::make_unique<GenericBackend>(std::move(*memory), device, multiprocessors,
                                          std::move(instances));
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
