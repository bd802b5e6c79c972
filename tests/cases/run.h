// Running a backend the way a caller does.
#ifndef ATTND_TESTS_CASES_RUN_H_
#define ATTND_TESTS_CASES_RUN_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/registry.h"

namespace attnd::testing {

// Names of the entries that this machine can run.
std::vector<std::string> AvailableBackends();

// Where the backend wants its tasks' memory; RunTasks takes host memory for all of them.
kernels::MemoryKind MemoryOf(const kernels::Backend& backend);

// `name` is one of AvailableBackends().
std::unique_ptr<kernels::Backend> MakeBackend(const std::string& name, int threads);

// Scratch memory for Run, of exactly the size that the backend asks for. Filled with NaN bytes, so
// that a kernel which counts on zeros shows.
class Workspace {
 public:
  Workspace(const kernels::Backend& backend, absl::Span<const kernels::AttentionTask> tasks);
  // Null if the backend wants none.
  void* data() { return memory_.get(); }

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  std::unique_ptr<void, Free> memory_;
};

// Validates, asks Supports, and runs with a workspace of its own.
absl::Status RunTasks(kernels::Backend& backend, absl::Span<const kernels::AttentionTask> tasks);

}  // namespace attnd::testing

#endif  // ATTND_TESTS_CASES_RUN_H_
