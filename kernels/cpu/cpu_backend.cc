#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <atomic>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "absl/strings/str_cat.h"
#include "kernels/cpu/flash_kernel.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/work_list.h"

namespace attnd::kernels::cpu {
namespace {

// A helper that sleeps takes some 10 us to arrive; a core computes about this many multiply-adds in
// that time. Less work per thread than this is not worth waking one.
constexpr double kMinCostPerThread = 500e3;

// Threads' scratch is cut from one workspace at multiples of a cache line.
constexpr int64_t kAlignmentBytes = 64;

Element ElementOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return Element::kF32;
    case DType::kF16:
      return Element::kF16;
    case DType::kBF16:
      return Element::kBF16;
  }
  return Element::kF32;
}

FlashTile TileOf(const WorkItem& item) {
  const AttentionProblem& p = item.task->problem;
  const AttentionArgs& a = item.task->args;
  const int64_t element_bytes = SizeBytes(p.dtype);
  const auto offset_bytes = [&](const Strides& strides) {
    return (item.batch * strides.batch + item.q_head * strides.head + item.q_begin * strides.row) *
           element_bytes;
  };
  FlashTile tile;
  tile.q = static_cast<const unsigned char*>(a.q) + offset_bytes(a.q_strides);
  tile.o = static_cast<unsigned char*>(a.o) + offset_bytes(a.o_strides);
  tile.q_row_stride_bytes = a.q_strides.row * element_bytes;
  tile.o_row_stride_bytes = a.o_strides.row * element_bytes;
  if (a.lse != nullptr) {
    tile.lse =
        a.lse + item.batch * a.lse_batch_stride + item.q_head * a.lse_head_stride + item.q_begin;
  }
  if (p.kv_len > 0) {
    tile.k = KeysOf(p, a, item.batch, item.q_head / p.group());
    tile.v = ValuesOf(p, a, item.batch, item.q_head / p.group());
  }
  tile.q_begin = item.q_begin;
  tile.rows = std::min(item.task->plan.q_tile, p.q_len - item.q_begin);
  tile.q_len = p.q_len;
  tile.kv_len = p.kv_len;
  tile.head_dim = p.head_dim;
  tile.band = p.mask.Resolve(p.q_len, p.kv_len);
  tile.scale = p.scale;
  tile.softcap = p.softcap;
  tile.alibi_slope = p.alibi ? a.alibi_slopes[item.q_head] : 0.0f;
  tile.element = ElementOf(p.dtype);
  return tile;
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(const FlashKernel& kernel, const BackendOptions& options)
      : kernel_(kernel),
        name_(absl::StrCat("cpu_", kernel.arch)),
        pool_(options.threads > 0 ? options.threads : UsableProcessors()) {}

  absl::string_view Name() const override { return name_; }

  absl::Status Supports(const AttentionProblem&) const override { return absl::OkStatus(); }

  KernelPlan Plan(const AttentionProblem& problem) const override {
    KernelPlan plan;
    plan.key = KeyOf(problem);
    plan.kernel = KernelName(plan.key, kernel_.arch);
    plan.q_tile = kernel_.q_tile;
    plan.kv_tile = kernel_.kv_tile;
    return plan;
  }

  int64_t WorkspaceBytes(absl::Span<const AttentionTask> tasks) const override {
    return Workers(WorkList(tasks)) * ScratchBytes(tasks);
  }

  absl::Status Run(absl::Span<const AttentionTask> tasks, void* workspace, Stream) override {
    const WorkList list(tasks);
    if (list.size() == 0) return absl::OkStatus();
    const int64_t scratch_bytes = ScratchBytes(tasks);
    std::atomic<int64_t> next{0};
    pool_.Run(Workers(list), [&](int worker) {
      void* scratch = static_cast<unsigned char*>(workspace) + worker * scratch_bytes;
      for (int64_t i = next.fetch_add(1); i < list.size(); i = next.fetch_add(1)) {
        kernel_.run(TileOf(list.At(i)), scratch);
      }
    });
    return absl::OkStatus();
  }

 private:
  // 0 for an empty list.
  int Workers(const WorkList& list) const {
    const double worthwhile = std::max(1.0, list.cost() / kMinCostPerThread);
    const int64_t most = std::min<int64_t>(pool_.threads(), list.size());
    return static_cast<int>(std::min(static_cast<double>(most), worthwhile));
  }

  // Of one thread.
  int64_t ScratchBytes(absl::Span<const AttentionTask> tasks) const {
    int64_t bytes = 0;
    for (const AttentionTask& task : tasks) {
      bytes = std::max(bytes, kernel_.scratch_bytes(task.problem.head_dim));
    }
    return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
  }

  const FlashKernel& kernel_;
  const std::string name_;
  ThreadPool pool_;
};

}  // namespace

std::unique_ptr<Backend> CreatePortable(const BackendOptions& options) {
  return std::make_unique<CpuBackend>(kFlashPortable, options);
}

#if defined(__x86_64__)
namespace {

absl::Status Missing(absl::string_view features) {
  return absl::FailedPreconditionError(
      absl::StrCat("the processor or the operating system does not support ", features));
}

// Not a name that __builtin_cpu_supports knows in every compiler.
bool SupportsF16C() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace

std::unique_ptr<Backend> CreateAvx2(const BackendOptions& options) {
  return std::make_unique<CpuBackend>(kFlashAvx2, options);
}

// __builtin_cpu_supports asks the processor, and XGETBV whether the system saves the registers.
absl::Status Avx2Available() {
  if (!__builtin_cpu_supports("avx2")) return Missing("AVX2");
  if (!__builtin_cpu_supports("fma")) return Missing("FMA");
  if (!SupportsF16C()) return Missing("F16C");
  return absl::OkStatus();
}

std::unique_ptr<Backend> CreateAvx512(const BackendOptions& options) {
  return std::make_unique<CpuBackend>(kFlashAvx512, options);
}

absl::Status Avx512Available() {
  if (absl::Status status = Avx2Available(); !status.ok()) return status;
  if (!__builtin_cpu_supports("avx512f")) return Missing("AVX-512F");
  if (!__builtin_cpu_supports("avx512bw")) return Missing("AVX-512BW");
  if (!__builtin_cpu_supports("avx512dq")) return Missing("AVX-512DQ");
  if (!__builtin_cpu_supports("avx512vl")) return Missing("AVX-512VL");
  return absl::OkStatus();
}
#endif

}  // namespace attnd::kernels::cpu
