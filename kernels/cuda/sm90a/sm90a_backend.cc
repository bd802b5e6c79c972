#include "kernels/cuda/sm90a/sm90a_backend.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/launch_list.h"
#include "kernels/cuda/launcher.h"
#include "kernels/cuda/sm90a/instance.h"
#include "kernels/cuda/sm90a/params.h"
#include "kernels/cuda/sm90a/repack.h"
#include "kernels/cuda/sm90a/tensor_map.h"

namespace attnd::kernels::cuda {
namespace {

using sm90a::LaunchParams;
using sm90a::MappedTensor;
using sm90a::Problem;

// A task's tensors; Q, K and V as the copy engine sees them.
struct Operands {
  MappedTensor q;
  MappedTensor k;
  MappedTensor v;
  MappedTensor o;
};
Operands OperandsOf(const AttentionTask& task) {
  const AttentionProblem& p = task.problem;
  const AttentionArgs& a = task.args;
  const auto map = [&p](const void* data, const Strides& strides, int64_t heads, int64_t len) {
    return MappedTensor{data,      {strides.batch, strides.head, strides.row}, p.batch, heads, len,
                        p.head_dim};
  };
  return {map(a.q, a.q_strides, p.q_heads, p.q_len), map(a.k, a.k_strides, p.kv_heads, p.kv_len),
          map(a.v, a.v_strides, p.kv_heads, p.kv_len), map(a.o, a.o_strides, p.q_heads, p.q_len)};
}

// ATTND_SM90A_CONFIG=n, for tuning and tests: the n-th instance of every launch key, or its last.
// -1: not set, or no number from 0 on. Plans and answers name the kernel that is taken.
int ForcedConfig() {
  // Nothing here sets variables. NOLINTNEXTLINE(concurrency-mt-unsafe)
  const char* const value = std::getenv("ATTND_SM90A_CONFIG");
  int index = -1;
  if (value == nullptr || !absl::SimpleAtoi(value, &index) || index < 0) return -1;
  return index;
}

int64_t RepackBytes(absl::Span<const AttentionTask> tasks) {
  int64_t bytes = 0;
  for (const AttentionTask& task : tasks) {
    if (task.problem.empty()) continue;
    const auto [q, k, v, o] = OperandsOf(task);
    for (const MappedTensor& tensor : {q, k, v}) {
      if (!sm90a::CanMap(tensor)) bytes += sm90a::RepackedBytes(tensor);
    }
    if (!sm90a::CanStore(o)) bytes += sm90a::RepackedBytes(o);
  }
  return bytes;
}

// An answer that is written densely first, and where it belongs.
struct Answer {
  MappedTensor dense;
  void* target;
  TensorDesc strides;
};

// Device memory for repacked tensors, in the stream's order: it goes when what was launched since
// is done. The server lays out tensors so that none is needed.
class Scratch {
 public:
  explicit Scratch(cudaStream_t stream) : stream_(stream) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    if (memory_ != nullptr) cudaFreeAsync(memory_, stream_);
  }
  absl::Status Allocate(int64_t size_bytes) {
    if (size_bytes == 0) return absl::OkStatus();
    ATTND_CUDA_RETURN_IF_ERROR(cudaMallocAsync(&memory_, size_bytes, stream_));
    return absl::OkStatus();
  }
  void* Take(int64_t size_bytes) {
    void* const taken = static_cast<unsigned char*>(memory_) + taken_bytes_;
    taken_bytes_ += size_bytes;
    return taken;
  }

 private:
  const cudaStream_t stream_;
  void* memory_ = nullptr;
  int64_t taken_bytes_ = 0;
};

class Sm90aBackend final : public Backend {
 public:
  Sm90aBackend(std::unique_ptr<Launcher> launcher, sm90a::EncodeFunction encode)
      : launcher_(std::move(launcher)), encode_(encode), forced_(ForcedConfig()) {
    for (const auto& [name, instance] : launcher_->instances()) {
      by_key_[instance->key].push_back(instance);
    }
    for (auto& [key, of_key] : by_key_) {
      std::sort(of_key.begin(), of_key.end(), [](const Instance* a, const Instance* b) {
        return a->from_kv_len < b->from_kv_len;
      });
    }
  }

  absl::string_view Name() const override { return kSm90aName; }

  absl::Status Supports(const AttentionProblem& p) const override {
    if (absl::Status status = CheckLengths(p); !status.ok()) return status;
    const std::string key = KernelName(KeyOf(p), "sm90a");
    if (!by_key_.contains(key)) {
      return absl::UnimplementedError(absl::StrCat("this device or build has no kernel ", key));
    }
    return absl::OkStatus();
  }

  KernelPlan Plan(const AttentionProblem& p) const override {
    KernelPlan plan;
    plan.key = KeyOf(p);
    const Instance& instance = Choose(by_key_.at(KernelName(plan.key, "sm90a")), p.kv_len);
    plan.kernel = instance.name;
    plan.q_tile = instance.q_tile;
    plan.kv_tile = instance.kv_tile;
    return plan;
  }

  int64_t WorkspaceBytes(absl::Span<const AttentionTask>) const override { return 0; }

  absl::Status Run(absl::Span<const AttentionTask> tasks, void*, Stream opaque_stream) override {
    const auto stream = static_cast<cudaStream_t>(opaque_stream);
    if (absl::Status status = launcher_->MakeCurrent(); !status.ok()) return status;
    Scratch scratch(stream);
    if (absl::Status status = scratch.Allocate(RepackBytes(tasks)); !status.ok()) return status;
    std::map<const Instance*, std::vector<Problem>> launches;
    std::vector<Answer> answers;
    for (const AttentionTask& task : tasks) {
      if (task.problem.empty()) continue;
      const Instance* instance = launcher_->instances().at(task.plan.kernel);
      absl::StatusOr<Problem> problem = Describe(task, *instance, scratch, answers, stream);
      if (!problem.ok()) return problem.status();
      launches[instance].push_back(*problem);
    }
    for (auto& [instance, problems] : launches) {
      if (absl::Status status = launcher_->Launch<LaunchParams>(*instance, problems, stream);
          !status.ok()) {
        return status;
      }
    }
    for (const auto& [dense, target, strides] : answers) {
      if (absl::Status status = sm90a::CopyRows(dense, target, strides, stream); !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }

 private:
  // Several instances of one launch key, by from_kv_len.
  using Instances = std::vector<const Instance*>;

  const Instance& Choose(const Instances& instances, int64_t kv_len) const {
    size_t chosen = 0;
    if (forced_ >= 0) {
      chosen = std::min(static_cast<size_t>(forced_), instances.size() - 1);
    } else {
      while (chosen + 1 < instances.size() && instances[chosen + 1]->from_kv_len <= kv_len) {
        ++chosen;
      }
    }
    return *instances[chosen];
  }

  absl::StatusOr<Problem> Describe(const AttentionTask& task, const Instance& instance,
                                   Scratch& scratch, std::vector<Answer>& answers,
                                   cudaStream_t stream) const {
    auto [q, k, v, o] = OperandsOf(task);
    for (MappedTensor* tensor : {&q, &k, &v}) {
      if (sm90a::CanMap(*tensor)) continue;
      void* const copy = scratch.Take(sm90a::RepackedBytes(*tensor));
      const TensorDesc strides = sm90a::RepackedStrides(*tensor);
      if (absl::Status status = sm90a::CopyRows(*tensor, copy, strides, stream); !status.ok()) {
        return status;
      }
      tensor->strides = strides;
      tensor->data = copy;
    }
    Problem problem = {};
    problem.desc = cuda::Describe(task, instance.q_tile);
    if (!sm90a::CanStore(o)) {
      problem.desc.o = scratch.Take(sm90a::RepackedBytes(o));
      problem.desc.o_desc = sm90a::RepackedStrides(o);
      answers.push_back({o, task.args.o, o.strides});
      answers.back().dense.data = problem.desc.o;
      answers.back().dense.strides = problem.desc.o_desc;
    }
    const bool bf16 = task.problem.dtype == DType::kBF16;
    const std::pair<CUtensorMap*, std::pair<const MappedTensor*, int>> maps[] = {
        {&problem.q_map, {&q, instance.q_tile}},
        {&problem.k_map, {&k, instance.kv_tile}},
        {&problem.v_map, {&v, instance.kv_tile}}};
    for (const auto& [map, tensor] : maps) {
      if (absl::Status status = sm90a::Encode(encode_, *tensor.first, bf16, tensor.second, *map);
          !status.ok()) {
        return status;
      }
    }
    return problem;
  }

  const std::unique_ptr<Launcher> launcher_;
  const sm90a::EncodeFunction encode_;
  const int forced_;  // -1: by length
  std::map<std::string, Instances> by_key_;
};

}  // namespace

absl::Status Sm90aAvailable() {
  int major = 0;
  int minor = 0;
  ATTND_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  ATTND_CUDA_RETURN_IF_ERROR(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
  if (major != 9 || minor != 0) {
    return absl::FailedPreconditionError(absl::StrCat("device 0 has compute capability ", major,
                                                      ".", minor, "; these kernels need 9.0"));
  }
  return sm90a::FindEncoder().status();
}

std::unique_ptr<Backend> CreateSm90a(const BackendOptions&) {
  absl::StatusOr<sm90a::EncodeFunction> encode = sm90a::FindEncoder();
  absl::StatusOr<std::unique_ptr<Launcher>> launcher = Launcher::Create(sm90a::Instances());
  if (!encode.ok() || !launcher.ok()) return nullptr;
  return std::make_unique<Sm90aBackend>(*std::move(launcher), *encode);
}

}  // namespace attnd::kernels::cuda
