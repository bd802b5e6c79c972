#include "server/executor/cuda_device.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/executor/cuda_batch.h"
#include "server/executor/cuda_memory.h"
#include "server/executor/return_if_error.h"
#include "server/scheduler/scheduler.h"

namespace attnd::server {
namespace {

// cudaMalloc stops the device for a moment: seldom, then.
constexpr int64_t kDeviceSlabBytes = int64_t{256} << 20;

CudaJob& OnDevice(RunningJob& running) { return static_cast<CudaJob&>(*running.on_device); }

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<Cuda> cuda, const DeviceDescription& description,
             const CudaDeviceOptions& options)
      : shared_(std::move(cuda)),
        description_(description),
        slice_(options.slice),
        ipc_(options.ipc) {}

  absl::Status Prepare(std::vector<std::unique_ptr<kernels::Backend>> backends,
                       int64_t device_bytes) {
    shared_.backends = std::move(backends);
    if (device_bytes == 0) {
      const absl::StatusOr<int64_t> free_bytes = shared_.cuda->FreeDeviceBytes();
      if (!free_bytes.ok()) return free_bytes.status();
      device_bytes = static_cast<int64_t>(kDeviceShare * static_cast<double>(*free_bytes));
    }
    shared_.memory = std::make_unique<SlabAllocator>(
        SlabOptions{device_bytes, kDeviceSlabBytes, kDeviceAlignmentBytes},
        std::make_shared<DeviceBlocks>(shared_.cuda));
    ATTND_RETURN_IF_ERROR(shared_.streams.Create());
    for (int i = 0; i < kCudaBatches; ++i) {
      absl::StatusOr<std::unique_ptr<Staging>> staging = Staging::Create(shared_.cuda);
      if (!staging.ok()) return staging.status();
      shared_.idle_staging.push_back(*std::move(staging));
    }
    return absl::OkStatus();
  }

  const DeviceDescription& Describe() const override { return description_; }
  absl::Status Supports(const kernels::AttentionProblem& problem) const override {
    return shared_.backends[0]->Supports(problem);
  }
  int max_batches() const override { return kCudaBatches; }
  std::shared_ptr<BlockAllocator> PinnedBlocks() override {
    return std::make_shared<server::PinnedBlocks>(shared_.cuda);
  }
  std::shared_ptr<PageLocker> RegionLocker() override {
    return std::make_shared<CudaPageLocker>(shared_.cuda);
  }
  std::shared_ptr<CudaIpc> Ipc() override { return ipc_; }
  DeviceMemory memory() const override {
    return {shared_.memory->used_bytes(), shared_.memory->held_bytes()};
  }

  absl::Status Reserve(RunningJob& running) override {
    auto job = std::make_unique<CudaJob>();
    job->job = running.job.get();
    job->request = &running.job->request();
    job->place = job->direct = PlaceRequest(*job->request);
    job->host = BasesOnHost(*job->request, running.o, running.lse);
    job->memory = shared_.memory.get();
    PlanLaunches(*job);
    if (job->block_bytes > shared_.memory->budget_bytes()) {
      absl::Status status = absl::ResourceExhaustedError(
          absl::StrCat("the request needs ", job->block_bytes, " bytes of ", description_.id,
                       "'s memory, device_bytes is ", shared_.memory->budget_bytes()));
      SetRetryPushbackMs(status, -1);
      return status;
    }
    job->block = shared_.memory->New(job->block_bytes);
    if (job->block == nullptr) {
      return absl::UnavailableError(
          absl::StrCat(description_.id, " has no room for ", job->block_bytes, " bytes now"));
    }
    job->device = BasesIn(job->block, job->place);
    UseInPlace(job->request->gpu, job->host, job->device);
    running.on_device = std::move(job);
    return absl::OkStatus();
  }

  absl::Status Begin(Stage stage, RunningBatch& batch) override {
    if (stage == Stage::kUpload) batch.on_device = Plan(batch);
    if (stage == Stage::kRun) NameKernels(batch);
    absl::Status status = static_cast<CudaBatch&>(*batch.on_device).Begin(stage);
    return status.ok() ? EnqueueSlices() : status;
  }

  absl::StatusOr<bool> Done(RunningBatch& batch) override {
    ATTND_RETURN_IF_ERROR(EnqueueSlices());
    return static_cast<CudaBatch&>(*batch.on_device).Done();
  }

 private:
  // How its problems run, and so what it needs beside its tensors.
  void PlanLaunches(CudaJob& job) const {
    const kernels::Backend& backend = *shared_.backends[0];
    std::vector<kernels::AttentionTask> tasks;
    for (const ProblemSlot& slot : job.request->problems) {
      job.plans.push_back(backend.Plan(slot.problem));
      tasks.push_back({slot.problem, job.plans.back(), {}});
    }
    const int64_t bytes = backend.WorkspaceBytes(tasks);
    job.workspace_bytes = (bytes + kDeviceAlignmentBytes - 1) & -kDeviceAlignmentBytes;
    if (bytes > 0) job.is_sliced = CutIntoSlices({job.request}, slice_).size() > 1;
    const int64_t workspaces = job.is_sliced ? kRunStreams : 1;
    job.block_bytes = std::max<int64_t>(job.place.size_bytes + workspaces * job.workspace_bytes, 1);
  }

  std::unique_ptr<CudaBatch> Plan(RunningBatch& batch) {
    std::vector<CudaJob*> jobs;
    std::vector<const Request*> requests;
    for (RunningJob& running : batch.jobs) {
      jobs.push_back(&OnDevice(running));
      requests.push_back(jobs.back()->request);
    }
    return std::make_unique<CudaBatch>(shared_, std::move(jobs), CutIntoSlices(requests, slice_));
  }

  static void NameKernels(RunningBatch& batch) {
    for (RunningJob& running : batch.jobs) {
      const CudaJob& job = OnDevice(running);
      if (!job.plans.empty()) running.kernel = job.plans[0].kernel;
    }
  }

  // Of the batches in order: the next one's follow when all of the first one's are given.
  absl::Status EnqueueSlices() {
    while (!shared_.sliced.empty()) {
      CudaBatch& first = *shared_.sliced.front();
      const absl::Status status = first.EnqueueSlices();
      if (absl::IsUnavailable(status)) return absl::OkStatus();  // with the next look
      if (!status.ok() || !first.all_enqueued()) return status;
      shared_.sliced.pop_front();
    }
    return absl::OkStatus();
  }

  CudaShared shared_;
  const DeviceDescription description_;
  const SliceSize slice_;
  const std::shared_ptr<CudaIpc> ipc_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(
    std::shared_ptr<Cuda> cuda, std::vector<std::unique_ptr<kernels::Backend>> backends,
    const DeviceDescription& description, const CudaDeviceOptions& options) {
  auto device = std::make_unique<CudaDevice>(std::move(cuda), description, options);
  ATTND_RETURN_IF_ERROR(device->Prepare(std::move(backends), options.device_bytes));
  return device;
}

}  // namespace attnd::server
