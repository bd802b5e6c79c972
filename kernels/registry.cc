#include "kernels/registry.h"

#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/features.h"
#if ATTND_HAVE_CUDA
#include "kernels/cuda/generic/generic_backend.h"
#include "kernels/cuda/sm90a/sm90a_backend.h"
#endif
#include "kernels/first_supporting.h"
#include "kernels/reference/reference.h"

namespace attnd::kernels {
namespace {

constexpr absl::string_view kReference = "reference";

absl::Status Always() { return absl::OkStatus(); }

#if ATTND_HAVE_CUDA
// fp32 has no kernels of its own for Hopper.
std::unique_ptr<Backend> CreateForHopper(const BackendOptions& options) {
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(cuda::CreateSm90a(options));
  backends.push_back(cuda::CreateGeneric(options));
  return FirstSupporting(std::move(backends));
}
#endif

constexpr BackendEntry kEntries[] = {
#if ATTND_HAVE_CUDA
    {cuda::kSm90aName, MemoryKind::kDevice, &cuda::Sm90aAvailable, &Always, &CreateForHopper},
    {cuda::kGenericName, MemoryKind::kDevice, &cuda::GenericAvailable, &Always,
     &cuda::CreateGeneric},
#endif
#if defined(__x86_64__)
    {"cpu_amx", MemoryKind::kHost, &cpu::AmxAvailable, &Always, &cpu::CreateAmx},
    {"cpu_avx512_bf16", MemoryKind::kHost, &cpu::Avx512BF16Available, &cpu::Avx512BF16Worthwhile,
     &cpu::CreateAvx512BF16},
    {"cpu_avx512", MemoryKind::kHost, &cpu::Avx512Available, &Always, &cpu::CreateAvx512},
    {"cpu_avx2", MemoryKind::kHost, &cpu::Avx2Available, &Always, &cpu::CreateAvx2},
#endif
    {"cpu_portable", MemoryKind::kHost, &Always, &Always, &cpu::CreatePortable},
    {"reference", MemoryKind::kHost, &Always, &Always, &CreateReference},
};

absl::StatusOr<ChosenBackend> Create(const BackendEntry& entry, std::string reason,
                                     const BackendOptions& options) {
  std::unique_ptr<Backend> backend = entry.create(options);
  if (backend == nullptr) {
    return absl::InternalError(
        absl::StrCat("backend ", entry.name, ", ", reason, ": the device failed to set it up"));
  }
  return ChosenBackend{std::move(backend), std::move(reason)};
}

absl::StatusOr<ChosenBackend> Force(absl::string_view name, absl::string_view by,
                                    const BackendOptions& options) {
  for (const BackendEntry& entry : kEntries) {
    if (entry.name != name) continue;
    if (absl::Status status = entry.available(); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("backend ", name, ", forced by ", by, ": ",
                                                      status.message()));
    }
    return Create(entry, absl::StrCat("forced by ", by), options);
  }
  const auto append_name = [](std::string* out, const BackendEntry& entry) {
    absl::StrAppend(out, entry.name);
  };
  return absl::NotFoundError(absl::StrCat("backend \"", name, "\", forced by ", by,
                                          ", does not exist; this build has ",
                                          absl::StrJoin(kEntries, ", ", append_name)));
}

}  // namespace

absl::Span<const BackendEntry> BackendEntries() { return kEntries; }

absl::StatusOr<ChosenBackend> ChooseBackend(absl::string_view name, const BackendOptions& options) {
  if (!name.empty()) return Force(name, "name", options);
  // Nothing here sets variables. NOLINTNEXTLINE(concurrency-mt-unsafe)
  const char* variable = std::getenv("ATTND_BACKEND");
  if (variable != nullptr && *variable != '\0') return Force(variable, "ATTND_BACKEND", options);
  std::string reason = "first available";
  for (const BackendEntry& entry : kEntries) {
    if (entry.memory != MemoryKind::kHost || entry.name == kReference) continue;
    absl::Status usable = entry.available();
    if (usable.ok()) usable = entry.worthwhile();
    if (usable.ok()) return Create(entry, std::move(reason), options);
    absl::StrAppend(&reason, "; not ", entry.name, ": ", usable.message());
  }
  return absl::FailedPreconditionError("no backend of this build runs on this machine");
}

}  // namespace attnd::kernels
