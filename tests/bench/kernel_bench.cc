// kernel_bench: times kernels on real random data and checks each against fp64. See README.md.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/registry.h"
#include "tests/bench/ceiling.h"
#include "tests/bench/measure.h"
#include "tests/bench/report.h"
#include "tests/bench/tune.h"
#include "tests/cases/table.h"

ABSL_FLAG(std::string, filter, "", "Times the cases whose name this regular expression finds.");
ABSL_FLAG(std::vector<std::string>, backend, {},
          "Backends by name, separated by commas. Default: all that this machine can run, but the "
          "reference.");
ABSL_FLAG(int, threads, 0, "Threads of a CPU backend; 0: one per usable processor.");
ABSL_FLAG(int, rounds, 5, "The median is over this many rounds.");
ABSL_FLAG(int, min_time_ms, 10, "A round runs a case again until this time has passed.");
ABSL_FLAG(bool, all_cases, false, "Chooses among the cases of the conformance tests too.");
ABSL_FLAG(bool, json, false, "Prints a JSON array instead of a table.");
ABSL_FLAG(bool, list, false, "Prints the names of the chosen cases and times nothing.");
ABSL_FLAG(
    bool, ceiling, false,
    "Measures the machine's ceilings in the same run: products in registers, reading memory.");
ABSL_FLAG(bool, tune, false,
          "Times every configuration that one backend has of its kernels, on cases of its own, and "
          "prints the best.");
ABSL_FLAG(std::vector<std::string>, tune_lengths, (std::vector<std::string>{"512", "2048", "8192"}),
          "Lengths of queries and keys that --tune times, separated by commas.");
ABSL_FLAG(int, tune_tokens, 16384, "Tokens of a call of --tune: the batch follows from it.");

namespace attnd::bench {
namespace {

// Of a case of --tune: enough to tell a right kernel from a wrong one, and fp64 stays within a
// tenth of a second.
constexpr int64_t kTuneCheckedRows = 16;

using Backends = std::vector<std::unique_ptr<kernels::Backend>>;

absl::StatusOr<std::vector<testing::Case>> Matching(const std::string& filter,
                                                    std::vector<testing::Case> cases,
                                                    const char* hint) {
  std::regex pattern;
  try {
    pattern = std::regex(filter);
  } catch (const std::regex_error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("--filter: \"", filter, "\" is no regular expression: ", error.what()));
  }
  std::erase_if(cases, [&](const testing::Case& c) { return !std::regex_search(c.name, pattern); });
  if (cases.empty()) {
    return absl::NotFoundError(absl::StrCat("--filter: \"", filter,
                                            "\" matches no case; --list prints their names", hint));
  }
  return cases;
}

absl::StatusOr<std::vector<testing::Case>> ChooseCases(const std::string& filter, bool all_cases) {
  std::vector<testing::Case> cases;
  for (const testing::CaseGroup& group : testing::CaseGroups()) {
    if (!group.is_bench && !all_cases) continue;
    cases.insert(cases.end(), group.cases.begin(), group.cases.end());
  }
  return Matching(filter, std::move(cases),
                  all_cases ? "" : ", --all_cases adds those of the conformance tests");
}

absl::StatusOr<std::vector<testing::Case>> ChooseTuneCases(const std::string& filter) {
  TuneShapes shapes{.lengths = {}, .tokens = absl::GetFlag(FLAGS_tune_tokens)};
  for (const std::string& text : absl::GetFlag(FLAGS_tune_lengths)) {
    int64_t length = 0;
    if (!absl::SimpleAtoi(text, &length) || length < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--tune_lengths has \"", text, "\"; it must be lengths of at least 1, by commas"));
    }
    shapes.lengths.push_back(length);
  }
  return Matching(filter, TuneCases(shapes), "");
}

absl::StatusOr<Backends> ChooseBackends(std::vector<std::string> names, int threads) {
  if (names.empty()) {
    for (const kernels::BackendEntry& entry : kernels::BackendEntries()) {
      if (entry.available().ok() && absl::string_view(entry.name) != "reference") {
        names.push_back(entry.name);
      }
    }
  }
  Backends backends;
  for (const std::string& name : names) {
    auto chosen = kernels::ChooseBackend(name, {.threads = threads});
    if (!chosen.ok()) return chosen.status();
    backends.push_back(std::move(chosen->backend));
  }
  return backends;
}

absl::Status CheckAtLeast(const char* flag, int value, int least) {
  if (value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, " is ", value, "; it must be at least ", least));
}

absl::Status CheckFlags() {
  for (const absl::Status& status :
       {CheckAtLeast("threads", absl::GetFlag(FLAGS_threads), 0),
        CheckAtLeast("rounds", absl::GetFlag(FLAGS_rounds), 1),
        CheckAtLeast("min_time_ms", absl::GetFlag(FLAGS_min_time_ms), 0),
        CheckAtLeast("tune_tokens", absl::GetFlag(FLAGS_tune_tokens), 1)}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// One line on a terminal, over and over; silent elsewhere.
void ShowProgress(size_t done, size_t total, const std::string& name) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::fprintf(stderr, "\r\033[K");
  if (done < total) std::fprintf(stderr, "[%zu/%zu] %s", done + 1, total, name.c_str());
  std::fflush(stderr);
}

MeasureOptions OptionsOfFlags() {
  return {.rounds = absl::GetFlag(FLAGS_rounds), .min_time_ms = absl::GetFlag(FLAGS_min_time_ms)};
}

void List(const std::vector<testing::Case>& cases) {
  for (const testing::Case& c : cases) std::printf("%s\n", c.name.c_str());
}

absl::Status Bench() {
  const auto cases = ChooseCases(absl::GetFlag(FLAGS_filter), absl::GetFlag(FLAGS_all_cases));
  if (!cases.ok()) return cases.status();
  const int threads = absl::GetFlag(FLAGS_threads);
  const auto backends = ChooseBackends(absl::GetFlag(FLAGS_backend), threads);
  if (!backends.ok()) return backends.status();
  if (absl::GetFlag(FLAGS_list)) {
    List(*cases);
    return absl::OkStatus();
  }
  const MeasureOptions options = OptionsOfFlags();
  std::vector<Row> rows;
  for (size_t i = 0; i < cases->size(); ++i) {
    ShowProgress(i, cases->size(), (*cases)[i].name);
    const auto measured = Measure((*cases)[i], *backends, options);
    if (!measured.ok()) return measured.status();
    rows.insert(rows.end(), measured->begin(), measured->end());
  }
  ShowProgress(cases->size(), cases->size(), "");
  std::vector<Ceiling> ceilings;
  if (absl::GetFlag(FLAGS_ceiling)) {
    auto measured = MeasureCeilings(threads > 0 ? threads : kernels::UsableProcessors(),
                                    options.rounds, options.min_time_ms);
    if (!measured.ok()) return measured.status();
    ceilings = *std::move(measured);
  }
  const std::string report =
      absl::GetFlag(FLAGS_json)
          ? ToJson(rows, ceilings)
          : absl::StrCat(Recipe(threads, options), ToText(ceilings), ToTable(rows));
  std::fputs(report.c_str(), stdout);
  return absl::OkStatus();
}

// The one that --backend names, or the best that this machine can run.
absl::StatusOr<std::string> BackendToTune() {
  const std::vector<std::string> names = absl::GetFlag(FLAGS_backend);
  if (names.size() == 1) return names[0];
  if (!names.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--backend names ", names.size(), "; --tune takes one"));
  }
  for (const kernels::BackendEntry& entry : kernels::BackendEntries()) {
    if (entry.available().ok()) return entry.name;
  }
  return absl::FailedPreconditionError("no backend of this build runs on this machine");
}

absl::StatusOr<std::unique_ptr<kernels::Backend>> MakeConfiguration(const std::string& backend,
                                                                    int configuration) {
  // Read when a backend is created; no other thread runs yet. NOLINTNEXTLINE(concurrency-mt-unsafe)
  setenv("ATTND_SM90A_CONFIG", absl::StrCat(configuration).c_str(), 1);
  auto chosen = kernels::ChooseBackend(backend, {.threads = absl::GetFlag(FLAGS_threads)});
  if (!chosen.ok()) return chosen.status();
  return std::move(chosen->backend);
}

// Cases that the backend does not support are told of, and left out.
absl::StatusOr<std::vector<TuneRow>> TuneAll(const std::vector<testing::Case>& cases,
                                             const Configurations& configurations) {
  MeasureOptions options = OptionsOfFlags();
  options.checked_rows = kTuneCheckedRows;
  std::vector<TuneRow> rows;
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto problem = testing::ProblemsOf(cases[i])[0];
    if (absl::Status status = configurations[0]->Supports(problem); !status.ok()) {
      std::fprintf(stderr, "kernel_bench: %s is left out: %s\n", cases[i].name.c_str(),
                   std::string(status.message()).c_str());
      continue;
    }
    ShowProgress(i, cases.size(), cases[i].name);
    const auto tuned = Tune(cases[i], configurations, options);
    if (!tuned.ok()) return tuned.status();
    rows.insert(rows.end(), tuned->begin(), tuned->end());
  }
  ShowProgress(cases.size(), cases.size(), "");
  return rows;
}

absl::Status TuneBackend() {
  const auto cases = ChooseTuneCases(absl::GetFlag(FLAGS_filter));
  if (!cases.ok()) return cases.status();
  if (absl::GetFlag(FLAGS_list)) {
    List(*cases);
    return absl::OkStatus();
  }
  const auto backend = BackendToTune();
  if (!backend.ok()) return backend.status();
  const auto configurations =
      MakeConfigurations([&](int number) { return MakeConfiguration(*backend, number); }, *cases);
  if (!configurations.ok()) return configurations.status();
  if (configurations->size() == 1) {
    std::fprintf(stderr, "kernel_bench: %s has one configuration of each kernel: nothing to tune\n",
                 backend->c_str());
    if (absl::GetFlag(FLAGS_json)) std::fputs(ToJson(std::vector<TuneRow>{}).c_str(), stdout);
    return absl::OkStatus();
  }
  const auto rows = TuneAll(*cases, *configurations);
  if (!rows.ok()) return rows.status();
  const std::string report =
      absl::GetFlag(FLAGS_json)
          ? ToJson(*rows)
          : absl::StrCat(Recipe(absl::GetFlag(FLAGS_threads), OptionsOfFlags()), ToTable(*rows),
                         "\n", ToConfigLines(*rows));
  std::fputs(report.c_str(), stdout);
  for (const TuneRow& row : *rows) {
    if (!row.is_right) return absl::DataLossError(absl::StrCat(row.row.kernel, " is WRONG"));
  }
  return absl::OkStatus();
}

absl::Status Main() {
  if (absl::Status status = CheckFlags(); !status.ok()) return status;
  return absl::GetFlag(FLAGS_tune) ? TuneBackend() : Bench();
}

}  // namespace
}  // namespace attnd::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Times attention kernels and checks them against fp64.");
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  if (arguments.size() > 1) {
    std::fprintf(stderr, "kernel_bench: unexpected argument \"%s\"\n", arguments[1]);
    return 1;
  }
  if (absl::Status status = attnd::bench::Main(); !status.ok()) {
    std::fprintf(stderr, "kernel_bench: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
