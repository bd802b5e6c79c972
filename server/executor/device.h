// One device behind three stages.
#ifndef ATTND_SERVER_EXECUTOR_DEVICE_H_
#define ATTND_SERVER_EXECUTOR_DEVICE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/job.h"

namespace attnd::server {

// A job in a running batch, with the memory of its answer. Jobs that were cancelled or expired
// between two stages are taken out of the batch, so a stage sees only those that still count.
struct RunningJob {
  JobPtr job;
  Buffer o;
  Buffer lse;
  std::string kernel;  // set by Run
};

struct DeviceDescription {
  std::string id;    // "cpu"
  std::string name;  // the model
  int64_t processors = 0;
  std::vector<std::string> backends;  // that could serve here, best first
  std::string backend;                // that serves
  std::string backend_reason;
};

// The stages of one batch are called in order by one thread, the executor's. Each returns when its
// work is done. On failure the batch's outputs are undefined. INTERNAL means that the device is
// lost.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceDescription& Describe() const = 0;
  // OK, or why this device cannot serve the problem (UNIMPLEMENTED). Thread-safe.
  virtual absl::Status Supports(const kernels::AttentionProblem& problem) const = 0;
  // Host to device. Nothing on a CPU.
  virtual absl::Status Upload(std::vector<RunningJob>& batch) = 0;
  virtual absl::Status Run(std::vector<RunningJob>& batch) = 0;
  // Device to the buffers o and lse. Nothing on a CPU.
  virtual absl::Status Download(std::vector<RunningJob>& batch) = 0;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_EXECUTOR_DEVICE_H_
