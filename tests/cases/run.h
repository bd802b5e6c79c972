// Running a backend the way a caller does.
#ifndef ATTND_TESTS_CASES_RUN_H_
#define ATTND_TESTS_CASES_RUN_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/registry.h"

namespace attnd::testing {

// Names of the entries that this machine can run.
std::vector<std::string> AvailableBackends();

// `name` is one of AvailableBackends().
std::unique_ptr<kernels::Backend> MakeBackend(const std::string& name, int threads);

// Validates and asks Supports, then runs with a workspace of exactly the wanted size. The workspace
// is filled with NaN bytes first, so that a kernel which counts on zeros shows.
absl::Status RunTasks(kernels::Backend& backend, absl::Span<const kernels::AttentionTask> tasks);

}  // namespace attnd::testing

#endif  // ATTND_TESTS_CASES_RUN_H_
