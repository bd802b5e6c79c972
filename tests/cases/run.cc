#include "tests/cases/run.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/cases/device_access.h"

namespace attnd::testing {
namespace {

constexpr size_t kWorkspaceAlignment = 64;  // kernels/backend.h

}  // namespace

void Workspace::Free::operator()(void* memory) const { std::free(memory); }

Workspace::Workspace(const kernels::Backend& backend,
                     absl::Span<const kernels::AttentionTask> tasks) {
  const int64_t size_bytes = backend.WorkspaceBytes(tasks);
  if (size_bytes == 0) return;
  void* memory = nullptr;
  if (posix_memalign(&memory, kWorkspaceAlignment, static_cast<size_t>(size_bytes)) != 0) {
    throw std::bad_alloc();
  }
  std::memset(memory, 0xff, static_cast<size_t>(size_bytes));
  memory_.reset(memory);
}

std::vector<std::string> AvailableBackends() {
  std::vector<std::string> names;
  for (const kernels::BackendEntry& entry : kernels::BackendEntries()) {
    if (entry.available().ok()) names.push_back(entry.name);
  }
  return names;
}

kernels::MemoryKind MemoryOf(const kernels::Backend& backend) {
  for (const kernels::BackendEntry& entry : kernels::BackendEntries()) {
    if (backend.Name() == entry.name) return entry.memory;
  }
  return kernels::MemoryKind::kHost;
}

std::unique_ptr<kernels::Backend> MakeBackend(const std::string& name, int threads) {
  for (const kernels::BackendEntry& entry : kernels::BackendEntries()) {
    if (name == entry.name) return entry.create({.threads = threads});
  }
  return nullptr;
}

absl::Status RunTasks(kernels::Backend& backend, absl::Span<const kernels::AttentionTask> tasks) {
  for (const kernels::AttentionTask& task : tasks) {
    if (absl::Status status = Validate(task.problem); !status.ok()) return status;
    if (absl::Status status = backend.Supports(task.problem); !status.ok()) return status;
  }
  if (MemoryOf(backend) == kernels::MemoryKind::kDevice) return RunOnDevice(backend, tasks);
  Workspace workspace(backend, tasks);
  return backend.Run(tasks, workspace.data(), nullptr);
}

}  // namespace attnd::testing
