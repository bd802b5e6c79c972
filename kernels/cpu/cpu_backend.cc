#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/decode_kernel.h"
#include "kernels/cpu/flash_kernel.h"
#include "kernels/cpu/give_turn.h"
#include "kernels/cpu/shares.h"
#include "kernels/cpu/split_results.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/work_list.h"

namespace attnd::kernels::cpu {
namespace {

// A helper that sleeps takes some 10 us to arrive on an idle machine and 20 or more on a virtual
// one, and wakes its tile unit for another 5; a core computes about this many multiply-adds in 30
// us, with kernels of speed 1. Less work per thread than this is not worth waking one.
constexpr double kMinCostPerThread = 1.5e6;
// Where helpers look for work they are there within a microsecond: 3 us are worth it.
constexpr double kMinCostPerSpinningThread = 3e5;

// How much faster than the vector kernels AMX multiplies, roughly.
constexpr double kAmxSpeed = 8;

// Pieces of work for each thread, so that they end together though some take longer.
constexpr int64_t kItemsPerThread = 4;
// One is enough where all take the same, each thread gets the same number, and threads are so few
// that none is likely to be late: every cut packs K and V once more.
constexpr int64_t kFewThreads = 4;

// Rows of an AMX task are cut down to this fraction for that, but to no less than a block.
constexpr int64_t kMostFraction = 16;

// Threads' scratch is cut from one workspace at multiples of a cache line.
constexpr int64_t kAlignmentBytes = 64;
int64_t RoundUp(int64_t bytes) {
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

// The kernels of one backend.
struct Kernels {
  const FlashKernel* flash;
  const DecodeKernel* decode;               // for q_len 1
  const FlashKernel* flash_bf16 = nullptr;  // in the place of flash, for bf16; null: none
  const GroupKernel* amx = nullptr;         // likewise, for halves
};

enum class Path { kFlash, kDecode, kAmx };

class CpuBackend final : public Backend {
 public:
  CpuBackend(absl::string_view name, const Kernels& kernels, const BackendOptions& options)
      : kernels_(kernels),
        name_(name),
        pool_(ThreadsOf(options), ThreadsOf(options) <= UsableProcessors()
                                      ? options.spin
                                      : std::chrono::microseconds(0)) {}

  absl::string_view Name() const override { return name_; }

  absl::Status Supports(const AttentionProblem&) const override { return absl::OkStatus(); }

  KernelPlan Plan(const AttentionProblem& problem) const override {
    KernelPlan plan;
    plan.key = KeyOf(problem);
    switch (PathOf(problem)) {
      case Path::kFlash:
        return Filled(plan, FlashOf(problem).arch, FlashOf(problem).q_tile,
                      FlashOf(problem).kv_tile);
      case Path::kDecode:
        return Filled(plan, kernels_.decode->arch, 1, kernels_.decode->kv_tile);
      case Path::kAmx:
        return Filled(plan, kernels_.amx->arch, kernels_.amx->q_block, kernels_.amx->kv_tile);
    }
    return plan;
  }

  int64_t WorkspaceBytes(absl::Span<const AttentionTask> tasks) const override {
    return Workers(ListOf(tasks)) * ScratchBytes(tasks) +
           SplitResults(kernels_.decode, tasks).bytes();
  }

  absl::Status Run(absl::Span<const AttentionTask> tasks, void* workspace, Stream) override {
    const WorkList list = ListOf(tasks);
    if (list.size() == 0) return absl::OkStatus();
    const int workers = Workers(list);
    const int64_t scratch_bytes = ScratchBytes(tasks);
    auto* const memory = static_cast<unsigned char*>(workspace);
    SplitResults splits(kernels_.decode, tasks);
    splits.Begin(memory + workers * scratch_bytes);
    Shares shares(list.size(), list.IsUniform() ? workers : 1);
    // Nobody waits long for so little, but who was about to answer a caller would.
    const bool gives_turns = list.cost() >= kMinCostPerThread;
    pool_.Run(workers, [&](int worker) {
      void* scratch = memory + worker * scratch_bytes;
      int64_t share = worker;  // the thread's own, as the number is
      for (int64_t i = shares.First(share); i >= 0; i = shares.Next(share)) {
        RunItem(list.At(i), splits, scratch);
        if (gives_turns) GiveTurn();
      }
    });
    return absl::OkStatus();
  }

 private:
  static int ThreadsOf(const BackendOptions& options) {
    return options.threads > 0 ? options.threads : UsableProcessors();
  }

  static KernelPlan Filled(KernelPlan plan, const char* arch, int64_t q_tile, int64_t kv_tile) {
    plan.kernel = KernelName(plan.key, arch);
    plan.q_tile = q_tile;
    plan.kv_tile = kv_tile;
    return plan;
  }

  Path PathOf(const AttentionProblem& p) const {
    if (p.q_len == 1) return Path::kDecode;
    // Tile products would be of zeros for the most part.
    if (SeesFewKeys(p)) return Path::kFlash;
    return kernels_.amx != nullptr && p.dtype != DType::kF32 ? Path::kAmx : Path::kFlash;
  }

  const FlashKernel& FlashOf(const AttentionProblem& p) const {
    return kernels_.flash_bf16 != nullptr && p.dtype == DType::kBF16 ? *kernels_.flash_bf16
                                                                     : *kernels_.flash;
  }

  void RunItem(const WorkItem& item, SplitResults& splits, void* scratch) const {
    switch (PathOf(item.task->problem)) {
      case Path::kFlash:
        return FlashOf(item.task->problem).run(FlashTileOf(item), scratch);
      case Path::kDecode:
        return splits.RunItem(item, scratch);
      case Path::kAmx:
        return kernels_.amx->run(GroupTileOf(item), scratch);
    }
  }

  // The fewer rows share a packing of K and V, the more pieces there are. What a row computes does
  // not depend on it.
  WorkList ListOf(absl::Span<const AttentionTask> tasks) const {
    for (int64_t fraction = 1;; fraction *= 2) {
      WorkList list(tasks, [&](const AttentionProblem& p) { return CutOf(p, fraction); });
      if (kernels_.amx == nullptr || fraction >= kMostFraction || HasEnoughPieces(list)) {
        return list;
      }
    }
  }

  // So many that the threads end together, or pieces too small to be cut.
  bool HasEnoughPieces(const WorkList& list) const {
    const int64_t threads = pool_.threads();
    const bool is_even = threads <= kFewThreads && list.IsUniform() && list.size() % threads == 0;
    const int64_t items_each = is_even ? 1 : kItemsPerThread;
    return threads == 1 || list.size() >= items_each * threads ||
           list.cost() < 2 * kMinCostPerSpinningThread * static_cast<double>(list.size());
  }

  Cut CutOf(const AttentionProblem& p, int64_t fraction) const {
    switch (PathOf(p)) {
      case Path::kFlash:
        return {.rows = FlashOf(p).q_tile, .row_keys = SeesFewKeys(p) ? kRowKeysOfFew : kRowKeys};
      case Path::kDecode:
        return {.by_kv_head = true, .rows = p.group(), .split_keys = kDecodeSplitKeys};
      case Path::kAmx:
        return {.by_kv_head = true,
                .rows = std::max(kernels_.amx->task_rows(ElementOf(p.dtype), p.head_dim) / fraction,
                                 kernels_.amx->q_block),
                .speed = kAmxSpeed};
    }
    return {};
  }

  // 0 for an empty list.
  int Workers(const WorkList& list) const {
    const double worthwhile = std::max(
        1.0, list.cost() / (pool_.spins() ? kMinCostPerSpinningThread : kMinCostPerThread));
    const int64_t most = std::min<int64_t>(pool_.threads(), list.size());
    const auto workers = static_cast<int64_t>(std::min(static_cast<double>(most), worthwhile));
    if (workers == 0 || !list.IsUniform()) return static_cast<int>(workers);
    // No more than end together.
    const int64_t items_each = (list.size() + workers - 1) / workers;
    return static_cast<int>((list.size() + items_each - 1) / items_each);
  }

  // Of one thread.
  int64_t ScratchBytes(absl::Span<const AttentionTask> tasks) const {
    int64_t bytes = 0;
    for (const AttentionTask& task : tasks) bytes = std::max(bytes, ScratchBytes(task.problem));
    return RoundUp(bytes);
  }

  int64_t ScratchBytes(const AttentionProblem& p) const {
    if (p.empty()) return 0;
    switch (PathOf(p)) {
      case Path::kFlash:
        return FlashOf(p).scratch_bytes(p.head_dim);
      case Path::kDecode:
        return SplitResults::ScratchBytes(*kernels_.decode, p);
      case Path::kAmx:
        return kernels_.amx->scratch_bytes(ElementOf(p.dtype), p.head_dim);
    }
    return 0;
  }

  const Kernels kernels_;
  const std::string name_;
  ThreadPool pool_;
};

}  // namespace

std::unique_ptr<Backend> CreatePortable(const BackendOptions& options) {
  return std::make_unique<CpuBackend>("cpu_portable", Kernels{&kFlashPortable, &kDecodePortable},
                                      options);
}

#if defined(__x86_64__)
std::unique_ptr<Backend> CreateAvx2(const BackendOptions& options) {
  return std::make_unique<CpuBackend>("cpu_avx2", Kernels{&kFlashAvx2, &kDecodeAvx2}, options);
}

std::unique_ptr<Backend> CreateAvx512(const BackendOptions& options) {
  return std::make_unique<CpuBackend>("cpu_avx512", Kernels{&kFlashAvx512, &kDecodeAvx512},
                                      options);
}

std::unique_ptr<Backend> CreateAvx512BF16(const BackendOptions& options) {
  return std::make_unique<CpuBackend>(
      "cpu_avx512_bf16",
      Kernels{.flash = &kFlashAvx512, .decode = &kDecodeAvx512, .flash_bf16 = &kFlashAvx512BF16},
      options);
}

std::unique_ptr<Backend> CreateAmx(const BackendOptions& options) {
  return std::make_unique<CpuBackend>(
      "cpu_amx", Kernels{.flash = &kFlashAvx512, .decode = &kDecodeAvx512, .amx = &kFlashAmx},
      options);
}
#endif

}  // namespace attnd::kernels::cpu
