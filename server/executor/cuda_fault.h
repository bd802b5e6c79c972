// Faults on order, for tests of what the server does about them.
#ifndef ATTND_SERVER_EXECUTOR_CUDA_FAULT_H_
#define ATTND_SERVER_EXECUTOR_CUDA_FAULT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/executor/cuda.h"

namespace attnd::server {

// `cuda` with faults, as the environment's ATTND_FAULT words them:
//   ""                      none: `cuda` itself
//   cuda_sticky_after:N     after N copies, every call fails as after a sticky error
//   cuda_oom_every:N        every Nth request for device memory finds none; a device makes 6 at its
//                           start, and does not start without them
// INVALID_ARGUMENT for anything else.
absl::StatusOr<std::shared_ptr<Cuda>> WithFault(std::shared_ptr<Cuda> cuda,
                                                absl::string_view fault);

}  // namespace attnd::server

#endif  // ATTND_SERVER_EXECUTOR_CUDA_FAULT_H_
