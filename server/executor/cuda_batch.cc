#include "server/executor/cuda_batch.h"

#include <algorithm>
#include <cassert>

#include "server/executor/return_if_error.h"

namespace attnd::server {
namespace {

// Slices given to the streams ahead of their turn: the next upload stands behind the one under way;
// and no more wait for kernels than it takes to keep both run streams in work.
constexpr int64_t kUploadsAhead = 2;
constexpr int64_t kSlicesAhead = kRunStreams + 2;

// Of what a batch has for each stage.
size_t EventIndex(Stage stage) {
  return static_cast<size_t>(stage) - static_cast<size_t>(Stage::kUpload);
}

}  // namespace

CudaBatch::CudaBatch(CudaShared& shared, std::vector<CudaJob*> jobs, std::vector<Slice> slices)
    : shared_(shared), jobs_(std::move(jobs)) {
  for (Slice& slice : slices) slices_.push_back({std::move(slice), {}, 0});
}

CudaBatch::~CudaBatch() {
  auto& sliced = shared_.sliced;
  sliced.erase(std::remove(sliced.begin(), sliced.end(), this), sliced.end());
  if (!IsIdle()) {
    for (kernels::Stream stream : shared_.streams.all()) {
      shared_.cuda->Wait(stream).IgnoreError();  // a lost device has nothing under way
    }
  }
  for (SliceRun& slice : slices_) {
    for (CudaEvent event : slice.events) {
      if (event != nullptr) shared_.streams.GiveBack(event);
    }
    FreeWorkspace(slice);
  }
  if (staging_ != nullptr) shared_.idle_staging.push_back(std::move(staging_));
}

absl::Status CudaBatch::Begin(Stage stage) {
  stage_ = stage;
  if (!is_sliced()) return slices_.empty() ? absl::OkStatus() : Enqueue(stage, slices_[0]);
  if (stage != Stage::kUpload) return absl::OkStatus();
  shared_.sliced.push_back(this);
  return absl::OkStatus();
}

absl::StatusOr<bool> CudaBatch::Done() {
  ATTND_RETURN_IF_ERROR(See());
  if (seen_[EventIndex(stage_)] < slices_.size()) return false;
  if (stage_ == Stage::kDownload && staging_ != nullptr) staging_->Deliver();
  return true;
}

absl::Status CudaBatch::EnqueueSlices() {
  ATTND_RETURN_IF_ERROR(See());
  while (!all_enqueued() && Ahead(Stage::kUpload) < kUploadsAhead &&
         Ahead(Stage::kRun) < kSlicesAhead) {
    for (const Stage stage : {Stage::kUpload, Stage::kRun, Stage::kDownload}) {
      SliceRun& slice = slices_[enqueued_];
      if (slice.events[EventIndex(stage)] != nullptr) continue;  // before it had to wait
      ATTND_RETURN_IF_ERROR(Enqueue(stage, slice));
    }
    ++enqueued_;
  }
  return absl::OkStatus();
}

void CudaBatch::FreeWorkspace(SliceRun& slice) {
  if (slice.workspace == nullptr) return;
  shared_.memory->Free(std::exchange(slice.workspace, nullptr), slice.workspace_bytes);
}

int64_t CudaBatch::Ahead(Stage stage) const {
  return static_cast<int64_t>(enqueued_) - static_cast<int64_t>(seen_[EventIndex(stage)]);
}

absl::Status CudaBatch::See() {
  for (size_t e = 0; e < kStageEvents; ++e) {
    while (seen_[e] < slices_.size() && slices_[seen_[e]].events[e] != nullptr) {
      const absl::StatusOr<bool> passed = shared_.cuda->Passed(slices_[seen_[e]].events[e]);
      if (!passed.ok()) return passed.status();
      if (!*passed) break;
      if (e == EventIndex(Stage::kRun)) FreeWorkspace(slices_[seen_[e]]);
      ++seen_[e];
    }
  }
  return absl::OkStatus();
}

bool CudaBatch::IsIdle() {
  if (!See().ok()) return false;
  for (size_t e = 0; e < kStageEvents; ++e) {
    if (seen_[e] < slices_.size() && slices_[seen_[e]].events[e] != nullptr) return false;
  }
  return !failed_;
}

absl::Status CudaBatch::Enqueue(Stage stage, SliceRun& slice) {
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

absl::Status CudaBatch::RecordEnd(Stage stage, SliceRun& slice, kernels::Stream stream) {
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

absl::Status CudaBatch::EnqueueUpload(const SliceRun& slice, kernels::Stream stream) {
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
  if (staging_ != nullptr) staging_->AppendUpload(copies);
  return shared_.cuda->CopyAsync(copies, stream);
}

void CudaBatch::AddToStaging(CudaJob& job) {
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

absl::Status CudaBatch::EnqueueRun(SliceRun& slice, kernels::Stream stream) {
  ATTND_RETURN_IF_ERROR(shared_.cuda->StreamWait(stream, slice.events[EventIndex(Stage::kUpload)]));
  const std::vector<kernels::AttentionTask> tasks = TasksOf(slice.pieces);
  if (tasks.empty()) return absl::OkStatus();
  ATTND_RETURN_IF_ERROR(WaitForCallers(slice, stream));
  kernels::Backend& backend = *shared_.backends[slice.run_stream];
  if (slice.workspace == nullptr) {  // it has one if it had to wait, perhaps half launched
    slice.workspace_bytes = backend.WorkspaceBytes(tasks);
    if (slice.workspace_bytes > 0) slice.workspace = shared_.memory->New(slice.workspace_bytes);
    if (slice.workspace_bytes > 0 && slice.workspace == nullptr) return RunOneByOne(slice, stream);
  }
  return TryAgainLater(backend.Run(tasks, slice.workspace, stream));
}

absl::Status CudaBatch::WaitForCallers(const SliceRun& slice, kernels::Stream stream) const {
  for (const Piece& piece : slice.pieces) {
    if (!IsWanted(piece)) continue;
    for (CudaEvent event : jobs_[piece.request]->request->gpu.ready) {
      ATTND_RETURN_IF_ERROR(shared_.cuda->StreamWait(stream, event));
    }
  }
  return absl::OkStatus();
}

absl::Status CudaBatch::RunOneByOne(const SliceRun& slice, kernels::Stream stream) {
  kernels::Backend& backend = *shared_.backends[slice.run_stream];
  for (const Piece& piece : slice.pieces) {
    const std::vector<kernels::AttentionTask> tasks = TasksOf({&piece, 1});
    if (tasks.empty()) continue;
    const CudaJob& job = *jobs_[piece.request];
    assert(backend.WorkspaceBytes(tasks) <= job.workspace_bytes);
    ATTND_RETURN_IF_ERROR(
        TryAgainLater(backend.Run(tasks, job.workspace(slice.run_stream), stream)));
  }
  return absl::OkStatus();
}

std::vector<kernels::AttentionTask> CudaBatch::TasksOf(absl::Span<const Piece> pieces) const {
  std::vector<kernels::AttentionTask> tasks;
  for (const Piece& piece : pieces) {
    const CudaJob& job = *jobs_[piece.request];
    if (!IsWanted(piece)) continue;
    AppendTasks(*job.request, job.place, piece, job.device, job.plans, tasks);
  }
  return tasks;
}

absl::Status CudaBatch::TryAgainLater(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return status;
  shared_.memory->FreeEmptySlabs();
  return absl::UnavailableError(status.message());
}

absl::Status CudaBatch::EnqueueDownload(const SliceRun& slice, kernels::Stream stream) {
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
  if (staging_ != nullptr) staging_->AppendDownload(copies);
  return shared_.cuda->CopyAsync(copies, stream);
}

}  // namespace attnd::server
