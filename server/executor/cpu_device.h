// The host's processors as a device: a kernels::Backend run on the requests' own memory.
#ifndef ATTND_SERVER_EXECUTOR_CPU_DEVICE_H_
#define ATTND_SERVER_EXECUTOR_CPU_DEVICE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"
#include "server/executor/device.h"

namespace attnd::server {

// Scratch memory that the device keeps between batches, and the most that it takes for one. A CPU
// backend needs some tiles a thread: megabytes. What is larger than the first goes after its batch;
// a batch that needs more than the second ends as RESOURCE_EXHAUSTED.
inline constexpr int64_t kMaxKeptWorkspaceBytes = int64_t{64} << 20;
inline constexpr int64_t kMaxWorkspaceBytes = int64_t{1} << 30;

// `backend` as kernels::ChooseBackend takes it, whose errors this returns; `threads`: 0, one per
// usable processor. `remark`: for the log, after the reason for the backend.
absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(absl::string_view backend, int threads,
                                                        absl::string_view remark = "");

// A device over this backend; `description` is what Describe() returns.
std::unique_ptr<Device> WrapCpuBackend(std::unique_ptr<kernels::Backend> backend,
                                       DeviceDescription description);

}  // namespace attnd::server

#endif  // ATTND_SERVER_EXECUTOR_CPU_DEVICE_H_
