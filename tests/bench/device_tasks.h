// A case in a GPU's memory, for backends that compute there.
#ifndef ATTND_TESTS_BENCH_DEVICE_TASKS_H_
#define ATTND_TESTS_BENCH_DEVICE_TASKS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace attnd::bench {

class DeviceTasks {
 public:
  virtual ~DeviceTasks() = default;

  // Runs all tasks that many times, one after the other on one stream. The time between an event
  // before the first and one after the last.
  virtual absl::StatusOr<double> RunUs(int64_t runs) = 0;

  // Brings O to where the tasks have it on the host. LSE stays.
  virtual absl::Status CopyOutputs() = 0;
};

// Copies the tasks, whose memory is the host's and outlives this, to the current GPU, with a
// workspace. `backend` outlives it too. Fails as Backend::Supports does; UNIMPLEMENTED in a build
// without CUDA, RESOURCE_EXHAUSTED where there is no memory.
absl::StatusOr<std::unique_ptr<DeviceTasks>> CopyToDevice(
    kernels::Backend& backend, absl::Span<const kernels::AttentionTask> tasks);

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_DEVICE_TASKS_H_
