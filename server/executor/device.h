// One device behind three stages.
#ifndef ATTND_SERVER_EXECUTOR_DEVICE_H_
#define ATTND_SERVER_EXECUTOR_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/job.h"

namespace attnd::server {

class CudaIpc;

// What a device holds for one job: memory of its own, plans. Destroyed before the job's request and
// buffers.
class JobOnDevice {
 public:
  virtual ~JobOnDevice() = default;
};

// What a device keeps of one batch. Its destructor waits until nothing of the batch is under way
// any more: from then on the memory of its jobs may go.
class BatchOnDevice {
 public:
  virtual ~BatchOnDevice() = default;
};

// A job in a running batch, with the memory of its answer.
struct RunningJob {
  JobPtr job;
  Buffer o;
  Buffer lse;
  std::string kernel;                        // set by the run stage
  std::unique_ptr<JobOnDevice> on_device{};  // set by Device::Reserve
};

// Jobs that were cancelled or expired between two stages move to `ended`, so that a stage sees only
// those that still count, while memory that the device may be using stays.
struct RunningBatch {
  // How long a part of the run stage may take, where the device can compute the batch in parts.
  Duration max_slice = Duration::max();
  // True from when such a device has begun the run stage until it is done: each look of Done then
  // computes a part, and between them other batches may go through all stages.
  bool in_slices = false;
  std::vector<RunningJob> jobs;
  std::vector<RunningJob> ended;
  std::unique_ptr<BatchOnDevice> on_device;  // the device's; last, so that it goes first
};

struct DeviceDescription {
  std::string id;    // "cpu", "cuda:0"
  std::string name;  // the model
  int64_t processors = 0;
  std::vector<std::string> backends;  // that could serve here, best first
  std::string backend;                // that serves
  std::string backend_reason;
};

// For a gauge.
struct DeviceMemory {
  int64_t used_bytes = 0;
  int64_t held_bytes = 0;  // taken from the device, used or kept
};

// A batch goes through kUpload (host to device), kRun and kDownload (device to the buffers o and
// lse): Begin, then Done until it says true, for each in order. One thread, the executor's, calls
// Reserve, Begin and Done.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceDescription& Describe() const = 0;
  // OK, or why this device cannot serve the problem (UNIMPLEMENTED). Thread-safe.
  virtual absl::Status Supports(const kernels::AttentionProblem& problem) const = 0;

  // How many batches may be under way at once. 1: each stage is done when Begin returns.
  virtual int max_batches() const { return 1; }

  // Whether any thread may call the stages, one at a time: a small batch may then run on the thread
  // that brings it.
  virtual bool runs_anywhere() const { return false; }

  // Takes what the job needs of the device into running.on_device. UNAVAILABLE: no room now, try
  // again when a batch has ended or after a while. RESOURCE_EXHAUSTED with pushback -1: never.
  virtual absl::Status Reserve(RunningJob& /*running*/) { return absl::OkStatus(); }

  // Begins a stage; may begin work of later stages where it overlaps with this one's. On failure
  // the batch's outputs are undefined. UNAVAILABLE: there is no room now and nothing was begun, try
  // again later. INTERNAL: the device is lost.
  virtual absl::Status Begin(Stage stage, RunningBatch& batch) = 0;

  // Whether the stage begun last is done; does not wait, but for the next part of a batch
  // in_slices, whose jobs may have ended since: theirs is then computed for nothing. Fails as Begin
  // does, but for UNAVAILABLE.
  virtual absl::StatusOr<bool> Done(RunningBatch& /*batch*/) { return true; }

  // Where pinned memory, which this device copies from and to at full speed, comes from; null: any
  // memory will do.
  virtual std::shared_ptr<BlockAllocator> PinnedBlocks() { return nullptr; }

  // Makes callers' memory such memory, for every GPU of the process; null: there is no need to.
  virtual std::shared_ptr<PageLocker> RegionLocker() { return nullptr; }

  // The way to what callers have on this GPU; null: it is none, or its driver cannot.
  virtual std::shared_ptr<CudaIpc> Ipc() { return nullptr; }

  // Thread-safe.
  virtual DeviceMemory memory() const { return {}; }
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_EXECUTOR_DEVICE_H_
