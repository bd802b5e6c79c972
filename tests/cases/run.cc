#include "tests/cases/run.h"

#include <cstdlib>
#include <cstring>
#include <memory>

namespace attnd::testing {
namespace {

constexpr size_t kWorkspaceAlignment = 64;  // kernels/backend.h

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Workspace = std::unique_ptr<void, Free>;

Workspace MakeWorkspace(int64_t size_bytes) {
  if (size_bytes == 0) return nullptr;
  void* memory = nullptr;
  if (posix_memalign(&memory, kWorkspaceAlignment, static_cast<size_t>(size_bytes)) != 0) {
    return nullptr;
  }
  std::memset(memory, 0xff, static_cast<size_t>(size_bytes));
  return Workspace(memory);
}

}  // namespace

std::vector<std::string> AvailableBackends() {
  std::vector<std::string> names;
  for (const kernels::BackendEntry& entry : kernels::BackendEntries()) {
    if (entry.available().ok()) names.push_back(entry.name);
  }
  return names;
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
  const Workspace workspace = MakeWorkspace(backend.WorkspaceBytes(tasks));
  return backend.Run(tasks, workspace.get(), nullptr);
}

}  // namespace attnd::testing
