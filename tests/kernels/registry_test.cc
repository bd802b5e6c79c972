#include "kernels/registry.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cases/run.h"

namespace attnd::kernels {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::StrEq;

// Sets ATTND_BACKEND for one test, and puts back what was there.
class ScopedVariable {
 public:
  explicit ScopedVariable(const char* value) {
    if (const char* old = std::getenv("ATTND_BACKEND")) old_ = old;
    value != nullptr ? setenv("ATTND_BACKEND", value, 1) : unsetenv("ATTND_BACKEND");
  }
  ~ScopedVariable() {
    old_.empty() ? unsetenv("ATTND_BACKEND") : setenv("ATTND_BACKEND", old_.c_str(), 1);
  }

 private:
  std::string old_;
};

AttentionProblem SmallProblem() {
  AttentionProblem p;
  p.dtype = DType::kBF16;  // which every backend has kernels of its own for
  p.batch = p.q_heads = p.kv_heads = 1;
  // More keys than few, which cpu_amx leaves to another kernel (kernels/cpu/few_keys.h).
  p.q_len = p.kv_len = 9;
  p.head_dim = 4;
  p.scale = DefaultScale(p.head_dim);
  return p;
}

TEST(Registry, ListsBestFirstAndTheReferenceLast) {
  std::vector<std::string> names;
  for (const BackendEntry& entry : BackendEntries()) {
    if (entry.memory == MemoryKind::kHost) names.push_back(entry.name);
  }
#if defined(__x86_64__)
  EXPECT_EQ(names, (std::vector<std::string>{"cpu_amx", "cpu_avx512_bf16", "cpu_avx512", "cpu_avx2",
                                             "cpu_portable", "reference"}));
#else
  EXPECT_EQ(names, (std::vector<std::string>{"cpu_portable", "reference"}));
#endif
}

TEST(Registry, ChoosesTheFirstAvailableAndWorthwhileAndNeverTheReference) {
  ScopedVariable unset(nullptr);
  const absl::StatusOr<ChosenBackend> chosen = ChooseBackend("", {.threads = 1});
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_THAT(chosen->reason, StartsWith("first available"));
  const auto entries = BackendEntries();
  const auto first = std::find_if(entries.begin(), entries.end(), [](const BackendEntry& entry) {
    return entry.memory == MemoryKind::kHost && entry.available().ok() && entry.worthwhile().ok();
  });
  ASSERT_NE(first, entries.end());
  EXPECT_EQ(chosen->backend->Name(), first->name);
  EXPECT_NE(chosen->backend->Name(), "reference");
}

#if defined(__x86_64__)
TEST(Registry, DotProductsOfPairsAreWorthwhileOnAmdAlone) {
  for (const BackendEntry& entry : BackendEntries()) {
    const absl::Status worthwhile = entry.worthwhile();
    if (std::string(entry.name) != "cpu_avx512_bf16") {
      EXPECT_TRUE(worthwhile.ok()) << entry.name << ": " << worthwhile;
    } else if (__builtin_cpu_is("amd") != 0) {
      EXPECT_TRUE(worthwhile.ok()) << worthwhile;
    } else {
      EXPECT_EQ(worthwhile.code(), absl::StatusCode::kFailedPrecondition);
    }
  }
}
#endif

// The log tells why a faster one was passed over.
TEST(Registry, TheReasonNamesTheEarlierOnesAndWhyTheyAreNotChosen) {
  ScopedVariable unset(nullptr);
  const absl::StatusOr<ChosenBackend> chosen = ChooseBackend("", {.threads = 1});
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  for (const BackendEntry& entry : BackendEntries()) {
    if (entry.memory != MemoryKind::kHost) continue;
    if (chosen->backend->Name() == entry.name) break;
    EXPECT_THAT(chosen->reason, HasSubstr(entry.name));
    const absl::Status available = entry.available();
    const absl::Status why_not = available.ok() ? entry.worthwhile() : available;
    EXPECT_THAT(chosen->reason, HasSubstr(std::string(why_not.message())));
  }
}

// The forced one runs: its kernels carry its own name, whichever way it was forced.
TEST(Registry, ForcedBackendIsTheOneThatRuns) {
  for (const std::string& name : testing::AvailableBackends()) {
    // cpu_avx2: avx2; cuda_generic: generic; reference: reference.
    const std::string arch = name.substr(name.find('_') + 1);
    for (bool by_variable : {false, true}) {
      ScopedVariable variable(by_variable ? name.c_str() : "no_such_backend");
      absl::StatusOr<ChosenBackend> chosen = ChooseBackend(by_variable ? "" : name, {.threads = 1});
      ASSERT_TRUE(chosen.ok()) << chosen.status();
      EXPECT_THAT(chosen->reason, StartsWith("forced by"));
      EXPECT_EQ(chosen->backend->Name(), name);
      const std::string kernel = "attn_fwd_bf16_d64_full_" + arch;  // some name their tiles, too
      EXPECT_THAT(chosen->backend->Plan(SmallProblem()).kernel,
                  AnyOf(StrEq(kernel), StartsWith(kernel + "_q")));
    }
  }
}

TEST(Registry, UnknownNameIsNotFoundAndListsTheNames) {
  for (bool by_variable : {false, true}) {
    ScopedVariable variable(by_variable ? "cpu_mmx" : nullptr);
    const absl::Status status =
        ChooseBackend(by_variable ? "" : "cpu_mmx", {.threads = 1}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    for (const char* part : {"cpu_mmx", "cpu_portable", "reference"}) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    }
  }
}

TEST(Registry, UnavailableBackendsSayWhatIsMissing) {
  for (const BackendEntry& entry : BackendEntries()) {
    const absl::Status available = entry.available();
    if (available.ok()) continue;
    EXPECT_EQ(available.code(), absl::StatusCode::kFailedPrecondition);
    const absl::Status forced = ChooseBackend(entry.name, {.threads = 1}).status();
    EXPECT_EQ(forced.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(forced.message()), HasSubstr(entry.name));
    EXPECT_THAT(std::string(forced.message()), HasSubstr(std::string(available.message())));
  }
}

TEST(Registry, AtLeastOneProcessorIsUsable) { EXPECT_GE(UsableProcessors(), 1); }

}  // namespace
}  // namespace attnd::kernels
