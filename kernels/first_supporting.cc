#include "kernels/first_supporting.h"

#include <algorithm>
#include <utility>

namespace attnd::kernels {
namespace {

class FirstSupportingBackend final : public Backend {
 public:
  explicit FirstSupportingBackend(std::vector<std::unique_ptr<Backend>> backends)
      : backends_(std::move(backends)) {}

  absl::string_view Name() const override { return backends_.front()->Name(); }

  absl::Status Supports(const AttentionProblem& problem) const override {
    return backends_[Find(problem)]->Supports(problem);
  }

  KernelPlan Plan(const AttentionProblem& problem) const override {
    return backends_[Find(problem)]->Plan(problem);
  }

  int64_t WorkspaceBytes(absl::Span<const AttentionTask> tasks) const override {
    int64_t bytes = 0;
    const std::vector<std::vector<AttentionTask>> shares = Share(tasks);
    for (size_t i = 0; i < backends_.size(); ++i) bytes += ShareBytes(i, shares[i]);
    return bytes;
  }

  absl::Status Run(absl::Span<const AttentionTask> tasks, void* workspace, Stream stream) override {
    auto* rest = static_cast<unsigned char*>(workspace);
    const std::vector<std::vector<AttentionTask>> shares = Share(tasks);
    for (size_t i = 0; i < backends_.size(); ++i) {
      if (shares[i].empty()) continue;
      const int64_t bytes = ShareBytes(i, shares[i]);
      if (absl::Status status = backends_[i]->Run(shares[i], bytes > 0 ? rest : nullptr, stream);
          !status.ok()) {
        return status;
      }
      if (bytes > 0) rest += bytes;
    }
    return absl::OkStatus();
  }

 private:
  // The last where none does: its reason is the one to tell.
  size_t Find(const AttentionProblem& problem) const {
    size_t i = 0;
    while (i + 1 < backends_.size() && !backends_[i]->Supports(problem).ok()) ++i;
    return i;
  }

  std::vector<std::vector<AttentionTask>> Share(absl::Span<const AttentionTask> tasks) const {
    std::vector<std::vector<AttentionTask>> shares(backends_.size());
    for (const AttentionTask& task : tasks) shares[Find(task.problem)].push_back(task);
    return shares;
  }

  int64_t ShareBytes(size_t i, absl::Span<const AttentionTask> share) const {
    if (share.empty()) return 0;
    constexpr int64_t kAlignment = 256;
    return (backends_[i]->WorkspaceBytes(share) + kAlignment - 1) / kAlignment * kAlignment;
  }

  const std::vector<std::unique_ptr<Backend>> backends_;
};

}  // namespace

std::unique_ptr<Backend> FirstSupporting(std::vector<std::unique_ptr<Backend>> backends) {
  const bool any_null = std::any_of(backends.begin(), backends.end(),
                                    [](const auto& backend) { return backend == nullptr; });
  if (any_null) return nullptr;
  return std::make_unique<FirstSupportingBackend>(std::move(backends));
}

}  // namespace attnd::kernels
