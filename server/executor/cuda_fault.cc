#include "server/executor/cuda_fault.h"

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace attnd::server {
namespace {

class StickyAfter final : public CudaWrapper {
 public:
  StickyAfter(std::shared_ptr<Cuda> cuda, int64_t copies)
      : CudaWrapper(std::move(cuda)), copies_left_(copies) {}

  absl::Status CopyAsync(absl::Span<const CudaCopy> copies, kernels::Stream stream) override {
    const auto wanted = static_cast<int64_t>(copies.size());
    if (copies_left_.fetch_sub(wanted) < wanted) return Fault();
    return CudaWrapper::CopyAsync(copies, stream);
  }
  absl::Status Record(CudaEvent event, kernels::Stream stream) override {
    return copies_left_ < 0 ? Fault() : CudaWrapper::Record(event, stream);
  }
  absl::StatusOr<bool> Passed(CudaEvent event) override {
    if (copies_left_ < 0) return Fault();
    return CudaWrapper::Passed(event);
  }

 private:
  static absl::Status Fault() {
    return absl::InternalError("injected: an illegal memory access was encountered");
  }
  std::atomic<int64_t> copies_left_;
};

class OutOfMemoryEvery final : public CudaWrapper {
 public:
  OutOfMemoryEvery(std::shared_ptr<Cuda> cuda, int64_t every)
      : CudaWrapper(std::move(cuda)), every_(every) {}

  absl::StatusOr<void*> NewDeviceMemory(int64_t size_bytes) override {
    if (++calls_ % every_ == 0) return absl::ResourceExhaustedError("injected: out of memory");
    return CudaWrapper::NewDeviceMemory(size_bytes);
  }

 private:
  const int64_t every_;
  std::atomic<int64_t> calls_{0};
};

}  // namespace

absl::StatusOr<std::shared_ptr<Cuda>> WithFault(std::shared_ptr<Cuda> cuda,
                                                absl::string_view fault) {
  if (fault.empty()) return cuda;
  const std::vector<std::string> parts = absl::StrSplit(fault, ':');
  int64_t count = 0;
  if (parts.size() == 2 && absl::SimpleAtoi(parts[1], &count) && count > 0) {
    if (parts[0] == "cuda_sticky_after") {
      return std::make_shared<StickyAfter>(std::move(cuda), count);
    }
    if (parts[0] == "cuda_oom_every") {
      return std::make_shared<OutOfMemoryEvery>(std::move(cuda), count);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "ATTND_FAULT=", fault, ": must be cuda_sticky_after:N or cuda_oom_every:N, N > 0"));
}

}  // namespace attnd::server
