// The devices of a server, by name.
#ifndef ATTND_SERVER_EXECUTOR_DEVICES_H_
#define ATTND_SERVER_EXECUTOR_DEVICES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/executor/cuda.h"
#include "server/executor/cuda_ipc.h"
#include "server/executor/device.h"

namespace attnd::server {

struct DeviceOptions {
  std::string devices = "auto";
  std::string backend;
  int threads = 0;
  int64_t device_bytes = 0;
};

inline constexpr int kCpuOrdinal = -1;

// `devices`: "auto", or a list such as "cuda:0,cuda:1" or "cpu". "auto" is every GPU where there is
// one, else the CPU; and what a forced backend asks for. `backend`: a name in the registry, or
// empty for none. `gpus`: how many there are, or why there are none. The ordinals, kCpuOrdinal for
// the CPU.
//
// INVALID_ARGUMENT for a text that is no list, or a device that stands there twice; NOT_FOUND for a
// GPU that does not exist, naming it and the number of those that do; what `gpus` says where GPUs
// are asked for by name and there are none.
absl::StatusOr<std::vector<int>> ResolveDevices(absl::string_view devices,
                                                absl::string_view backend,
                                                const absl::StatusOr<int>& gpus);

// What a GPU's device is made of, see MakeCudaDevice.
struct Gpu {
  std::shared_ptr<Cuda> cuda;
  std::vector<std::unique_ptr<kernels::Backend>> backends;
  DeviceDescription description;
  std::shared_ptr<CudaIpc> ipc;  // null: the driver has not what it takes
};
// `backend` empty: the best that runs there; otherwise `forced_by` says by what, for the log. With
// the fault that the environment's ATTND_FAULT asks for (cuda_fault.h).
absl::StatusOr<Gpu> OpenGpu(int ordinal, absl::string_view backend, absl::string_view forced_by);

// Opens them, each with `backend`, or ATTND_BACKEND, or the best that runs there. At least one.
absl::StatusOr<std::vector<std::unique_ptr<Device>>> CreateDevices(const DeviceOptions& options);

}  // namespace attnd::server

#endif  // ATTND_SERVER_EXECUTOR_DEVICES_H_
