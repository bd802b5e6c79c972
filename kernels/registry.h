// Every backend of this build, in an explicit order, best first; `reference` last, which is never
// chosen silently.
#ifndef ATTND_KERNELS_REGISTRY_H_
#define ATTND_KERNELS_REGISTRY_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/backend.h"

namespace attnd::kernels {

struct BackendOptions {
  // Threads of a CPU backend, the caller's included; 0: one per processor that this process may
  // use.
  int threads = 0;
  // So long after its last work such a thread looks for more before it sleeps, where there is a
  // processor for each; for callers whose process has nothing else to do meanwhile. 0: not at all.
  std::chrono::microseconds spin{0};
};

// Where the memory of a backend's tasks lies.
enum class MemoryKind { kHost, kDevice };

struct BackendEntry {
  const char* name;
  MemoryKind memory;
  // OK where this machine can run it; otherwise FAILED_PRECONDITION saying what is missing.
  absl::Status (*available)();
  // Whether to choose it unasked where it is available: OK, or FAILED_PRECONDITION saying why a
  // later entry is faster on this processor.
  absl::Status (*worthwhile)();
  // Null if the device fails; ChooseBackend makes an INTERNAL error of it.
  std::unique_ptr<Backend> (*create)(const BackendOptions& options);
};

absl::Span<const BackendEntry> BackendEntries();

struct ChosenBackend {
  std::unique_ptr<Backend> backend;
  // For the log: "forced by ATTND_BACKEND"; "first available", and why not an earlier one.
  std::string reason;
};

// `name`, or if it is empty the environment's ATTND_BACKEND, or if that is unset the first
// available and worthwhile entry for host memory other than the reference. NOT_FOUND for a name
// that is not in the list (the message lists them), FAILED_PRECONDITION for one that this machine
// cannot run.
absl::StatusOr<ChosenBackend> ChooseBackend(absl::string_view name, const BackendOptions& options);

// Processors that this process may run on: the affinity mask and the cgroup's CPU quota, at
// least 1.
int UsableProcessors();

}  // namespace attnd::kernels

#endif  // ATTND_KERNELS_REGISTRY_H_
