// What a GPU is given of one batch: its slices, their copies, launches and events.
#ifndef ATTND_SERVER_EXECUTOR_CUDA_BATCH_H_
#define ATTND_SERVER_EXECUTOR_CUDA_BATCH_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/executor/cuda.h"
#include "server/executor/cuda_device.h"
#include "server/executor/cuda_layout.h"
#include "server/executor/cuda_staging.h"
#include "server/executor/device.h"
#include "server/memory/slab_allocator.h"

namespace attnd::server {

// What the device keeps of a request: one block for its tensors and for workspaces of its own.
struct CudaJob final : JobOnDevice {
  ~CudaJob() override {
    if (block != nullptr) memory->Free(block, block_bytes);
  }
  // Of its own, for launches of its own on this stream.
  unsigned char* workspace(size_t run_stream) const {
    return block + place.size_bytes + (is_sliced ? run_stream * workspace_bytes : 0);
  }
  const Job* job = nullptr;
  const Request* request = nullptr;
  std::vector<kernels::KernelPlan> plans;  // of each slot
  RequestPlace place;
  RequestPlace direct;  // without the tensors that go by staging
  bool slopes_are_there = false;
  TensorBases host;
  TensorBases device;
  bool is_sliced = false;       // its slices run side by side
  int64_t workspace_bytes = 0;  // of one launch
  SlabAllocator* memory = nullptr;
  int64_t block_bytes = 0;
  unsigned char* block = nullptr;  // the tensors, then the workspaces
};

// A GPU's streams, and events to use again. Of the executor's thread.
class CudaStreams {
 public:
  explicit CudaStreams(std::shared_ptr<Cuda> cuda) : cuda_(std::move(cuda)) {}
  ~CudaStreams() {
    for (CudaEvent event : events_) cuda_->FreeEvent(event);
    for (kernels::Stream stream : all()) {
      if (stream != nullptr) cuda_->FreeStream(stream);
    }
  }
  CudaStreams(const CudaStreams&) = delete;
  CudaStreams& operator=(const CudaStreams&) = delete;

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
struct CudaShared {
  explicit CudaShared(std::shared_ptr<Cuda> c) : cuda(std::move(c)), streams(cuda) {}

  const std::shared_ptr<Cuda> cuda;
  CudaStreams streams;
  std::vector<std::unique_ptr<kernels::Backend>> backends;
  std::unique_ptr<SlabAllocator> memory;
  std::vector<std::unique_ptr<Staging>> idle_staging;
  std::deque<class CudaBatch*> sliced;  // whose slices are not all given to the streams, in order
  size_t next_run_stream = 0;
};

// A batch in slices, each with an event after each of its stages. A single slice goes on as the
// executor says; of several each goes on by itself, see MakeCudaDevice. Of the executor's thread.
class CudaBatch final : public BatchOnDevice {
 public:
  CudaBatch(CudaShared& shared, std::vector<CudaJob*> jobs, std::vector<Slice> slices);
  ~CudaBatch() override;

  bool is_sliced() const { return slices_.size() > 1; }
  bool all_enqueued() const { return enqueued_ == slices_.size(); }

  // As Device::Begin and Done, but that slices are given to the streams by EnqueueSlices.
  absl::Status Begin(Stage stage);
  absl::StatusOr<bool> Done();
  // Gives the streams the slices whose turn comes. UNAVAILABLE: later.
  absl::Status EnqueueSlices();

 private:
  static constexpr size_t kStageEvents = 3;
  struct SliceRun {
    Slice pieces;
    std::array<CudaEvent, kStageEvents> events = {};  // after each stage; null: not begun
    size_t run_stream = 0;
    unsigned char* workspace = nullptr;  // for all pieces together, until they have run
    int64_t workspace_bytes = 0;
  };

  int64_t Ahead(Stage stage) const;
  bool IsWanted(const Piece& piece) const { return !jobs_[piece.request]->job->finished(); }
  // Counts the slices that are through each stage.
  absl::Status See();
  bool IsIdle();

  absl::Status Enqueue(Stage stage, SliceRun& slice);
  absl::Status EnqueueUpload(const SliceRun& slice, kernels::Stream stream);
  void AddToStaging(CudaJob& job);
  absl::Status EnqueueRun(SliceRun& slice, kernels::Stream stream);
  // Where there is no room for one workspace: batches that waited for it would hold what they wait
  // for. Each request has one of its own.
  // For what callers' events have recorded of tensors that lie on the GPU.
  absl::Status WaitForCallers(const SliceRun& slice, kernels::Stream stream) const;
  absl::Status RunOneByOne(const SliceRun& slice, kernels::Stream stream);
  std::vector<kernels::AttentionTask> TasksOf(absl::Span<const Piece> pieces) const;
  // Memory that the backend could not get for a launch can be had when something ends, or from what
  // the pool keeps.
  absl::Status TryAgainLater(const absl::Status& status);
  absl::Status EnqueueDownload(const SliceRun& slice, kernels::Stream stream);
  absl::Status RecordEnd(Stage stage, SliceRun& slice, kernels::Stream stream);
  void FreeWorkspace(SliceRun& slice);

  CudaShared& shared_;
  const std::vector<CudaJob*> jobs_;
  std::vector<SliceRun> slices_;
  Stage stage_ = Stage::kUpload;
  size_t enqueued_ = 0;                         // slices, if it is sliced
  std::array<size_t, kStageEvents> seen_ = {};  // slices seen through each stage, in order
  std::unique_ptr<Staging> staging_;
  bool failed_ = false;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_EXECUTOR_CUDA_BATCH_H_
