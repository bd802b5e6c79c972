#include "kernels/cpu/features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace attnd::kernels::cpu {
namespace {

absl::Status Missing(absl::string_view features) {
  return absl::FailedPreconditionError(
      absl::StrCat("the processor or the operating system does not support ", features));
}

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers Cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  // Zeros where the processor does not know the leaf.
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

// Not names that __builtin_cpu_supports knows in every compiler.
bool SupportsF16C() { return (Cpuid(1, 0).ecx & bit_F16C) != 0; }
bool SupportsAvx512BF16() { return (Cpuid(7, 1).eax & (1u << 5)) != 0; }
bool IsFromAmd() { return Cpuid(0, 0).ebx == signature_AMD_ebx; }
bool SupportsAmxTile() { return (Cpuid(7, 0).edx & (1u << 24)) != 0; }
bool SupportsAmxBF16() { return (Cpuid(7, 0).edx & (1u << 22)) != 0; }

// Since Linux 5.16 a process asks before it uses the 8 KiB of tiles that each thread then carries.
absl::Status AskForTiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return absl::OkStatus();
  const int error = errno;
  // glibc's strerror is safe here: its table is constant. NOLINTNEXTLINE(concurrency-mt-unsafe)
  const char* reason = std::strerror(error);
  return absl::FailedPreconditionError(absl::StrCat(
      "the processor has AMX, but the operating system does not permit it (arch_prctl: ", reason,
      ")"));
}

absl::Status FindAmx() {
  if (absl::Status status = Avx512BF16Available(); !status.ok()) return status;
  if (!SupportsAmxTile()) return Missing("AMX-TILE");
  if (!SupportsAmxBF16()) return Missing("AMX-BF16");
  return AskForTiles();
}

}  // namespace

// __builtin_cpu_supports asks the processor, and XGETBV whether the system saves the registers.
absl::Status Avx2Available() {
  if (!__builtin_cpu_supports("avx2")) return Missing("AVX2");
  if (!__builtin_cpu_supports("fma")) return Missing("FMA");
  if (!SupportsF16C()) return Missing("F16C");
  return absl::OkStatus();
}

absl::Status Avx512Available() {
  if (absl::Status status = Avx2Available(); !status.ok()) return status;
  if (!__builtin_cpu_supports("avx512f")) return Missing("AVX-512F");
  if (!__builtin_cpu_supports("avx512bw")) return Missing("AVX-512BW");
  if (!__builtin_cpu_supports("avx512dq")) return Missing("AVX-512DQ");
  if (!__builtin_cpu_supports("avx512vl")) return Missing("AVX-512VL");
  return absl::OkStatus();
}

absl::Status Avx512BF16Available() {
  if (absl::Status status = Avx512Available(); !status.ok()) return status;
  if (!SupportsAvx512BF16()) return Missing("AVX512-BF16");
  return absl::OkStatus();
}

absl::Status Avx512BF16Worthwhile() {
  if (IsFromAmd()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "products of bf16 pairs are known to be faster than fp32 on AMD's processors alone");
}

absl::Status AmxAvailable() {
  static const auto* const status = new absl::Status(FindAmx());
  return *status;
}

}  // namespace attnd::kernels::cpu
#endif
