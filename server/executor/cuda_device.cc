#include "server/executor/cuda_device.h"

#include <algorithm>
#include <array>
#include <deque>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/executor/cuda_memory.h"
#include "server/executor/cuda_staging.h"
#include "server/memory/slab_allocator.h"
#include "server/scheduler/scheduler.h"

namespace attnd::server {
namespace {

// cudaMalloc stops the device for a moment: seldom, then.
constexpr int64_t kDeviceSlabBytes = int64_t{256} << 20;
// Slices given to the streams ahead of their turn: the next upload stands behind the one under way;
// and no more wait for kernels than it takes to keep both run streams in work.
constexpr int64_t kUploadsAhead = 2;
constexpr int64_t kSlicesAhead = kRunStreams + 2;

constexpr size_t kStageEvents = 3;
size_t EventIndex(Stage stage) {
  return static_cast<size_t>(stage) - static_cast<size_t>(Stage::kUpload);
}

#define ATTND_RETURN_IF_ERROR(expression)                               \
  do {                                                                  \
    if (absl::Status attnd_status = (expression); !attnd_status.ok()) { \
      return attnd_status;                                              \
    }                                                                   \
  } while (0)

// Memory that a backend could not get for a launch can be had when something ends.
absl::Status TryAgainLater(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return status;
  return absl::UnavailableError(status.message());
}

struct CudaJob final : JobOnDevice {
  ~CudaJob() override {
    if (block != nullptr) memory->Free(block, std::max<int64_t>(place.size_bytes, 1));
  }
  const Job* job = nullptr;
  const Request* request = nullptr;
  std::vector<kernels::KernelPlan> plans;  // of each slot
  RequestPlace place;
  RequestPlace direct;  // without the tensors that go by staging
  bool slopes_are_there = false;
  TensorBases host;
  TensorBases device;
  SlabAllocator* memory = nullptr;
  unsigned char* block = nullptr;
};

CudaJob& OnDevice(RunningJob& running) { return static_cast<CudaJob&>(*running.on_device); }

// A GPU's streams, and events to use again. Of the executor's thread.
class Streams {
 public:
  explicit Streams(std::shared_ptr<Cuda> cuda) : cuda_(std::move(cuda)) {}
  ~Streams() {
    for (CudaEvent event : events_) cuda_->FreeEvent(event);
    for (kernels::Stream stream : all()) {
      if (stream != nullptr) cuda_->FreeStream(stream);
    }
  }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  absl::Status Create() {
    std::vector<kernels::Stream*> streams = {&upload, &download};
    for (kernels::Stream& stream : run) streams.push_back(&stream);
    for (kernels::Stream* stream : streams) {
      const absl::StatusOr<kernels::Stream> made = cuda_->NewStream();
      if (!made.ok()) return made.status();
      *stream = *made;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<CudaEvent> TakeEvent() {
    if (events_.empty()) return cuda_->NewEvent();
    const CudaEvent event = events_.back();
    events_.pop_back();
    return event;
  }
  void GiveBack(CudaEvent event) { events_.push_back(event); }

  std::vector<kernels::Stream> all() const {
    std::vector<kernels::Stream> streams = {upload, download};
    streams.insert(streams.end(), run.begin(), run.end());
    return streams;
  }

  kernels::Stream upload = nullptr;
  std::array<kernels::Stream, kRunStreams> run = {};
  kernels::Stream download = nullptr;

 private:
  const std::shared_ptr<Cuda> cuda_;
  std::vector<CudaEvent> events_;
};

// What batches share.
struct Shared {
  explicit Shared(std::shared_ptr<Cuda> c) : cuda(std::move(c)), streams(cuda) {}

  const std::shared_ptr<Cuda> cuda;
  Streams streams;
  std::vector<std::unique_ptr<kernels::Backend>> backends;
  std::unique_ptr<SlabAllocator> memory;
  std::vector<std::unique_ptr<Staging>> idle_staging;
  std::deque<class CudaBatch*> sliced;  // whose slices are not all given to the streams, in order
  size_t next_run_stream = 0;
};

class CudaBatch final : public BatchOnDevice {
 public:
  CudaBatch(Shared& shared, std::vector<CudaJob*> jobs, std::vector<Slice> slices)
      : shared_(shared), jobs_(std::move(jobs)) {
    for (Slice& slice : slices) slices_.push_back({std::move(slice), {}, 0});
  }

  ~CudaBatch() override {
    auto& sliced = shared_.sliced;
    sliced.erase(std::remove(sliced.begin(), sliced.end(), this), sliced.end());
    if (!IsIdle()) {
      for (kernels::Stream stream : shared_.streams.all()) {
        shared_.cuda->Wait(stream).IgnoreError();  // a lost device has nothing under way
      }
    }
    for (const SliceRun& slice : slices_) {
      for (CudaEvent event : slice.events) {
        if (event != nullptr) shared_.streams.GiveBack(event);
      }
    }
    for (auto& [block, size_bytes] : workspaces_) shared_.memory->Free(block, size_bytes);
    if (staging_ != nullptr) shared_.idle_staging.push_back(std::move(staging_));
  }

  bool is_sliced() const { return slices_.size() > 1; }
  bool all_enqueued() const { return enqueued_ == slices_.size(); }

  absl::Status Begin(Stage stage) {
    stage_ = stage;
    if (!is_sliced()) return slices_.empty() ? absl::OkStatus() : Enqueue(stage, slices_[0]);
    if (stage != Stage::kUpload) return absl::OkStatus();
    shared_.sliced.push_back(this);
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Done() {
    ATTND_RETURN_IF_ERROR(See());
    if (seen_[EventIndex(stage_)] < slices_.size()) return false;
    if (stage_ == Stage::kDownload && staging_ != nullptr) staging_->Deliver();
    return true;
  }

  // Gives the streams the slices whose turn comes. UNAVAILABLE: later.
  absl::Status EnqueueSlices() {
    ATTND_RETURN_IF_ERROR(See());
    while (!all_enqueued() && Ahead(Stage::kUpload) < kUploadsAhead &&
           Ahead(Stage::kRun) < kSlicesAhead) {
      for (const Stage stage : {Stage::kUpload, Stage::kRun, Stage::kDownload}) {
        ATTND_RETURN_IF_ERROR(Enqueue(stage, slices_[enqueued_]));
      }
      ++enqueued_;
    }
    return absl::OkStatus();
  }

 private:
  struct SliceRun {
    Slice pieces;
    std::array<CudaEvent, kStageEvents> events = {};  // after each stage; null: not begun
    size_t run_stream = 0;
  };

  int64_t Ahead(Stage stage) const {
    return static_cast<int64_t>(enqueued_) - static_cast<int64_t>(seen_[EventIndex(stage)]);
  }

  // Counts the slices that are through each stage.
  absl::Status See() {
    for (size_t e = 0; e < kStageEvents; ++e) {
      while (seen_[e] < slices_.size() && slices_[seen_[e]].events[e] != nullptr) {
        const absl::StatusOr<bool> passed = shared_.cuda->Passed(slices_[seen_[e]].events[e]);
        if (!passed.ok()) return passed.status();
        if (!*passed) break;
        ++seen_[e];
      }
    }
    return absl::OkStatus();
  }

  bool IsIdle() {
    if (!See().ok()) return false;
    for (size_t e = 0; e < kStageEvents; ++e) {
      if (seen_[e] < slices_.size() && slices_[seen_[e]].events[e] != nullptr) return false;
    }
    return !failed_;
  }

  absl::Status Enqueue(Stage stage, SliceRun& slice) {
    absl::Status status;
    kernels::Stream stream = nullptr;
    if (stage == Stage::kUpload) {
      stream = shared_.streams.upload;
      status = EnqueueUpload(slice, stream);
    } else if (stage == Stage::kRun) {
      slice.run_stream = shared_.next_run_stream++ % kRunStreams;
      stream = shared_.streams.run[slice.run_stream];
      status = EnqueueRun(slice, stream);
    } else {
      stream = shared_.streams.download;
      status = EnqueueDownload(slice, stream);
    }
    if (status.ok()) status = RecordEnd(stage, slice, stream);
    failed_ = !status.ok();
    return status;
  }

  absl::Status RecordEnd(Stage stage, SliceRun& slice, kernels::Stream stream) {
    CudaEvent& event = slice.events[EventIndex(stage)];
    const absl::StatusOr<CudaEvent> taken = shared_.streams.TakeEvent();
    if (!taken.ok()) return taken.status();
    if (absl::Status status = shared_.cuda->Record(*taken, stream); !status.ok()) {
      shared_.streams.GiveBack(*taken);
      return status;
    }
    if (event != nullptr) shared_.streams.GiveBack(event);
    event = *taken;
    return absl::OkStatus();
  }

  bool IsWanted(const Piece& piece) const { return !jobs_[piece.request]->job->finished(); }

  absl::Status EnqueueUpload(const SliceRun& slice, kernels::Stream stream) {
    if (!is_sliced() && !shared_.idle_staging.empty() && staging_ == nullptr) {
      staging_ = std::move(shared_.idle_staging.back());
      shared_.idle_staging.pop_back();
    }
    if (staging_ != nullptr) staging_->Reset();
    std::vector<CudaCopy> copies;
    for (const Piece& piece : slice.pieces) {
      CudaJob& job = *jobs_[piece.request];
      if (!IsWanted(piece)) continue;
      if (staging_ != nullptr && piece.is_whole_request) AddToStaging(job);
      AppendUploads(*job.request, job.direct, piece, job.host, job.device, copies);
      if (!job.slopes_are_there && job.direct.slopes.rows > 0) {
        copies.push_back(
            {job.device.slopes, 0, job.host.slopes, 0, job.place.slopes.host_bytes(), 1});
      }
      job.slopes_are_there = true;
    }
    for (const CudaCopy& copy : copies) {
      ATTND_RETURN_IF_ERROR(shared_.cuda->CopyAsync(copy, stream));
    }
    return staging_ == nullptr ? absl::OkStatus() : staging_->Upload(stream);
  }

  void AddToStaging(CudaJob& job) {
    const auto add_input = [&](TensorPlace& tensor, unsigned char* host, unsigned char*& device) {
      if (tensor.rows == 0) return;
      unsigned char* const staged = staging_->AddInput(tensor, host);
      if (staged == nullptr) return;
      device = staged;
      tensor.rows = 0;
    };
    const auto add_output = [&](TensorPlace& tensor, unsigned char* host, unsigned char*& device) {
      if (tensor.rows == 0) return;
      unsigned char* const staged = staging_->AddOutput(tensor, host);
      if (staged == nullptr) return;
      device = staged;
      tensor.rows = 0;
    };
    add_input(job.direct.q, job.host.q, job.device.q);
    add_input(job.direct.k, job.host.k, job.device.k);
    add_input(job.direct.v, job.host.v, job.device.v);
    add_input(job.direct.slopes, job.host.slopes, job.device.slopes);
    add_output(job.direct.o, job.host.o, job.device.o);
    add_output(job.direct.lse, job.host.lse, job.device.lse);
  }

  absl::Status EnqueueRun(const SliceRun& slice, kernels::Stream stream) {
    std::vector<kernels::AttentionTask> tasks;
    for (const Piece& piece : slice.pieces) {
      const CudaJob& job = *jobs_[piece.request];
      if (!IsWanted(piece)) continue;
      AppendTasks(*job.request, job.place, piece, job.device, job.plans, tasks);
    }
    if (tasks.empty()) return absl::OkStatus();
    kernels::Backend& backend = *shared_.backends[slice.run_stream];
    unsigned char* workspace = nullptr;
    if (const int64_t bytes = backend.WorkspaceBytes(tasks); bytes > 0) {
      workspace = shared_.memory->New(bytes);
      if (workspace == nullptr) return absl::UnavailableError("no workspace on the device");
      workspaces_.push_back({workspace, bytes});
    }
    ATTND_RETURN_IF_ERROR(
        shared_.cuda->StreamWait(stream, slice.events[EventIndex(Stage::kUpload)]));
    return TryAgainLater(backend.Run(tasks, workspace, stream));
  }

  absl::Status EnqueueDownload(const SliceRun& slice, kernels::Stream stream) {
    ATTND_RETURN_IF_ERROR(shared_.cuda->StreamWait(stream, slice.events[EventIndex(Stage::kRun)]));
    std::vector<CudaCopy> copies;
    for (const Piece& piece : slice.pieces) {
      const CudaJob& job = *jobs_[piece.request];
      if (IsWanted(piece)) {
        AppendDownloads(*job.request, job.direct, piece, job.host, job.device, copies);
      } else if (staging_ != nullptr) {
        staging_->Drop(job.host.o);
        staging_->Drop(job.host.lse);
      }
    }
    for (const CudaCopy& copy : copies) {
      ATTND_RETURN_IF_ERROR(shared_.cuda->CopyAsync(copy, stream));
    }
    return staging_ == nullptr ? absl::OkStatus() : staging_->Download(stream);
  }

  Shared& shared_;
  const std::vector<CudaJob*> jobs_;
  std::vector<SliceRun> slices_;
  Stage stage_ = Stage::kUpload;
  size_t enqueued_ = 0;                         // slices, if it is sliced
  std::array<size_t, kStageEvents> seen_ = {};  // slices seen through each stage, in order
  std::unique_ptr<Staging> staging_;
  std::vector<std::pair<unsigned char*, int64_t>> workspaces_;
  bool failed_ = false;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<Cuda> cuda, const DeviceDescription& description,
             const CudaDeviceOptions& options)
      : shared_(std::move(cuda)), description_(description), slice_(options.slice) {}

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
    const int64_t bytes = std::max<int64_t>(job->place.size_bytes, 1);
    if (bytes > shared_.memory->budget_bytes()) {
      absl::Status status = absl::ResourceExhaustedError(
          absl::StrCat("the request needs ", bytes, " bytes of ", description_.id,
                       "'s memory, device_bytes is ", shared_.memory->budget_bytes()));
      SetRetryPushbackMs(status, -1);
      return status;
    }
    job->block = shared_.memory->New(bytes);
    if (job->block == nullptr) {
      return absl::UnavailableError(
          absl::StrCat(description_.id, " has no room for ", bytes, " bytes now"));
    }
    job->device = BasesIn(job->block, job->place);
    for (const ProblemSlot& slot : job->request->problems) {
      job->plans.push_back(shared_.backends[0]->Plan(slot.problem));
    }
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

  Shared shared_;
  const DeviceDescription description_;
  const SliceSize slice_;
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
