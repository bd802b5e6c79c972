#include "tests/bench/device_tasks.h"

namespace attnd::bench {

absl::StatusOr<std::unique_ptr<DeviceTasks>> CopyToDevice(
    kernels::Backend&, absl::Span<const kernels::AttentionTask>) {
  return absl::UnimplementedError("this build has no CUDA");
}

}  // namespace attnd::bench
