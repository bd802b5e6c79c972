#include "server/executor/cpu_device.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "kernels/registry.h"
#include "server/executor/give_way.h"
#include "server/executor/slices.h"

namespace attnd::server {
namespace {

constexpr int64_t kWorkspaceAlignment = 64;  // what Backend::Run asks for

// Scratch memory that grows to what is asked for.
class Workspace {
 public:
  // Null if `bytes` is 0; RESOURCE_EXHAUSTED if it is too much.
  absl::StatusOr<void*> Get(int64_t bytes) {
    if (bytes == 0) return nullptr;
    if (bytes > kMaxWorkspaceBytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the batch needs ", bytes, " bytes of workspace, the most is ", kMaxWorkspaceBytes));
    }
    if (bytes > size_bytes_) {
      size_bytes_ = (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
      memory_.reset();
      memory_.reset(std::aligned_alloc(kWorkspaceAlignment, static_cast<size_t>(size_bytes_)));
      if (memory_ == nullptr) {
        size_bytes_ = 0;
        return absl::ResourceExhaustedError(
            absl::StrCat("the system has no memory for ", bytes, " bytes of workspace"));
      }
    }
    return memory_.get();
  }

  void DropIfLarge() {
    if (size_bytes_ <= kMaxKeptWorkspaceBytes) return;
    memory_.reset();
    size_bytes_ = 0;
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  int64_t size_bytes_ = 0;
};

class CpuDevice final : public Device {
 public:
  CpuDevice(std::unique_ptr<kernels::Backend> backend, DeviceDescription description)
      : backend_(std::move(backend)), description_(std::move(description)) {}

  // Makes the scratch memory that most calls will ask for, pages and all: none of them waits for
  // the system to bring it, or makes the heap grow around what was there before.
  absl::Status Prepare() {
    int64_t bytes = 0;
    for (const auto dtype : {kernels::DType::kF32, kernels::DType::kF16, kernels::DType::kBF16}) {
      bytes = std::max(bytes, WorkspaceBytesOfAllThreads(dtype));
    }
    const absl::StatusOr<void*> workspace = workspace_.Get(bytes);
    if (!workspace.ok()) return workspace.status();
    if (bytes > 0) std::memset(*workspace, 0, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }

  const DeviceDescription& Describe() const override { return description_; }

  absl::Status Supports(const kernels::AttentionProblem& problem) const override {
    return backend_->Supports(problem);
  }

  bool runs_anywhere() const override { return true; }

  absl::Status Begin(Stage stage, RunningBatch& batch) override {
    if (stage != Stage::kRun) return absl::OkStatus();
    std::vector<kernels::AttentionTask> tasks = TasksOf(batch.jobs);
    const int64_t count = SliceCount(batch);
    if (count <= 1) return Run(tasks);
    Slices slices = CutUp(tasks, count);
    if (slices.size() <= 1) return Run(tasks);
    batch.in_slices = true;
    batch.on_device = std::make_unique<SlicedBatch>(std::move(slices));
    return RunNext(batch).status();
  }

  absl::StatusOr<bool> Done(RunningBatch& batch) override {
    if (!batch.in_slices) return true;
    return RunNext(batch);
  }

 private:
  using Slices = std::deque<std::vector<kernels::AttentionTask>>;

  // The slices that are still to be computed.
  struct SlicedBatch final : BatchOnDevice {
    explicit SlicedBatch(Slices all) : slices(std::move(all)) {}
    Slices slices;
  };

  static int64_t SliceCount(const RunningBatch& batch) {
    Duration predicted{};
    for (const RunningJob& running : batch.jobs) predicted += running.job->predicted();
    return predicted <= batch.max_slice ? 1 : predicted / batch.max_slice + 1;
  }

  // Into this many of about the same FLOPs, as far as heads and queries go.
  static Slices CutUp(const std::vector<kernels::AttentionTask>& tasks, int64_t count) {
    double flops = 0;
    for (const kernels::AttentionTask& task : tasks) flops += kernels::Flops(task.problem);
    const double slice_flops = flops / static_cast<double>(count);
    Slices slices;
    double left = 0;  // of the last slice
    for (const kernels::AttentionTask& task : tasks) {
      const double task_flops = kernels::Flops(task.problem);
      const auto parts = static_cast<int64_t>(std::ceil(task_flops / std::max(slice_flops, 1.0)));
      for (kernels::AttentionTask& part : CutTask(task, parts)) {
        const double part_flops = kernels::Flops(part.problem, part.q_begin, part.q_end);
        if (slices.empty() || part_flops > left) {
          slices.emplace_back();
          left = slice_flops;
        }
        slices.back().push_back(std::move(part));
        left -= part_flops;
      }
    }
    return slices;
  }

  // True if it was the last.
  absl::StatusOr<bool> RunNext(RunningBatch& batch) {
    Slices& slices = static_cast<SlicedBatch&>(*batch.on_device).slices;
    if (absl::Status status = Run(slices.front()); !status.ok()) return status;
    slices.pop_front();
    batch.in_slices = !slices.empty();
    return !batch.in_slices;
  }

  std::vector<kernels::AttentionTask> TasksOf(std::vector<RunningJob>& jobs) const {
    std::vector<kernels::AttentionTask> tasks;
    for (RunningJob& running : jobs) {
      const Request& request = running.job->request();
      for (const ProblemSlot& slot : request.problems) {
        tasks.push_back({slot.problem, backend_->Plan(slot.problem),
                         BindToHost(request, slot, running.o, running.lse)});
        if (running.kernel.empty()) running.kernel = tasks.back().plan.kernel;
      }
    }
    return tasks;
  }

  // At head_dim 128, with work for every thread.
  int64_t WorkspaceBytesOfAllThreads(kernels::DType dtype) const {
    kernels::AttentionProblem problem;
    problem.dtype = dtype;
    problem.batch = 1;
    problem.q_heads = problem.kv_heads = description_.processors;
    problem.q_len = problem.kv_len = 1024;
    problem.head_dim = 128;
    problem.scale = kernels::DefaultScale(problem.head_dim);
    const kernels::AttentionTask task = {problem, backend_->Plan(problem), {}};
    return backend_->WorkspaceBytes({&task, 1});
  }

  // All of them in one call of the backend.
  absl::Status Run(const std::vector<kernels::AttentionTask>& tasks) {
    if (tasks.empty()) return absl::OkStatus();
    const absl::StatusOr<void*> workspace = workspace_.Get(backend_->WorkspaceBytes(tasks));
    if (!workspace.ok()) return workspace.status();
    absl::Status status = backend_->Run(tasks, *workspace, nullptr);
    workspace_.DropIfLarge();
    return status;
  }

  const std::unique_ptr<kernels::Backend> backend_;
  const DeviceDescription description_;
  Workspace workspace_;  // of the thread that calls the stages
};

// "model name" of the first processor; not every architecture has one.
std::string CpuModel() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const size_t colon = line.find(':');
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return std::string(absl::StripAsciiWhitespace(absl::string_view(line).substr(colon + 1)));
    }
  }
  return "unknown processor";
}

}  // namespace

std::unique_ptr<Device> WrapCpuBackend(std::unique_ptr<kernels::Backend> backend,
                                       DeviceDescription description) {
  return std::make_unique<CpuDevice>(std::move(backend), std::move(description));
}

absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(absl::string_view backend, int threads,
                                                        absl::string_view remark) {
  absl::StatusOr<kernels::ChosenBackend> chosen;
  // The backend's threads are as nice as the one that starts them.
  std::thread([&] {
    GiveWay();
    chosen = kernels::ChooseBackend(backend, {threads});
  }).join();
  if (!chosen.ok()) return chosen.status();
  const absl::string_view name = chosen->backend->Name();
  DeviceDescription description;
  description.id = "cpu";
  description.name = CpuModel();
  description.processors = threads > 0 ? threads : kernels::UsableProcessors();
  for (const kernels::BackendEntry& entry : kernels::BackendEntries()) {
    const bool is_host = entry.memory == kernels::MemoryKind::kHost;
    if (name == entry.name && !is_host) {
      return absl::UnimplementedError(absl::StrCat(
          "backend ", name, " computes in a GPU's memory; it does not run on the device cpu"));
    }
    if (is_host && entry.available().ok()) description.backends.push_back(entry.name);
  }
  description.backend = std::string(chosen->backend->Name());
  description.backend_reason = chosen->reason;
  if (!remark.empty()) absl::StrAppend(&description.backend_reason, "; ", remark);
  auto device = std::make_unique<CpuDevice>(std::move(chosen->backend), std::move(description));
  if (absl::Status status = device->Prepare(); !status.ok()) return status;
  return device;
}

}  // namespace attnd::server
