// Lets a GPU work on the tests' own host memory, in place: guard zones, poison and sentinels then
// hold for it as for a CPU backend, and no test needs to know where a backend computes.
#ifndef ATTND_TESTS_CASES_DEVICE_ACCESS_H_
#define ATTND_TESTS_CASES_DEVICE_ACCESS_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace attnd::testing {

// Runs `tasks`, whose memory is the host's, on a backend for device memory, and waits for it.
// UNIMPLEMENTED in a build without CUDA.
absl::Status RunOnDevice(kernels::Backend& backend, absl::Span<const kernels::AttentionTask> tasks);

}  // namespace attnd::testing

#endif  // ATTND_TESTS_CASES_DEVICE_ACCESS_H_
