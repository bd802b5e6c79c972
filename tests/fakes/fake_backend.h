// A kernels::Backend that writes constants and notes how it was called.
#ifndef ATTND_TESTS_FAKES_FAKE_BACKEND_H_
#define ATTND_TESTS_FAKES_FAKE_BACKEND_H_

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/backend.h"

namespace attnd::fakes {

// O of task n of a call is n + 1 everywhere (fp32, dense), its LSE -(n + 1).
class FakeBackend final : public kernels::Backend {
 public:
  struct Call {
    std::vector<kernels::AttentionTask> tasks;
    void* workspace = nullptr;
  };

  // Read and set between calls.
  int64_t workspace_bytes = 0;
  absl::Status run_status;
  std::vector<Call> calls;

  absl::string_view Name() const override { return "fake_backend"; }
  absl::Status Supports(const kernels::AttentionProblem& problem) const override {
    if (problem.dtype == kernels::DType::kF32) return absl::OkStatus();
    return absl::UnimplementedError("the fake backend has fp32 only");
  }
  kernels::KernelPlan Plan(const kernels::AttentionProblem& problem) const override {
    const kernels::LaunchKey key = kernels::KeyOf(problem);
    return {kernels::KernelName(key, "fake"), key, 1, 1};
  }
  int64_t WorkspaceBytes(absl::Span<const kernels::AttentionTask>) const override {
    return workspace_bytes;
  }
  absl::Status Run(absl::Span<const kernels::AttentionTask> tasks, void* workspace,
                   kernels::Stream) override {
    calls.push_back({{tasks.begin(), tasks.end()}, workspace});
    if (workspace != nullptr) std::memset(workspace, 0xff, static_cast<size_t>(workspace_bytes));
    for (size_t n = 0; n < tasks.size(); ++n) Fill(tasks[n], static_cast<float>(n + 1));
    return run_status;
  }

 private:
  static void Fill(const kernels::AttentionTask& task, float value) {
    const kernels::AttentionProblem& problem = task.problem;
    const int64_t rows = problem.batch * problem.q_heads * problem.q_len;
    auto* const o = static_cast<float*>(task.args.o);
    for (int64_t i = 0; i < rows * problem.head_dim; ++i) o[i] = value;
    for (int64_t i = 0; task.args.lse != nullptr && i < rows; ++i) task.args.lse[i] = -value;
  }
};

}  // namespace attnd::fakes

#endif  // ATTND_TESTS_FAKES_FAKE_BACKEND_H_
