// kernel_bench: times kernels on real random data and checks each against fp64. See README.md.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/registry.h"
#include "tests/bench/measure.h"
#include "tests/bench/report.h"
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

namespace attnd::bench {
namespace {

using Backends = std::vector<std::unique_ptr<kernels::Backend>>;

absl::StatusOr<std::vector<testing::Case>> ChooseCases(const std::string& filter, bool all_cases) {
  std::regex pattern;
  try {
    pattern = std::regex(filter);
  } catch (const std::regex_error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("--filter: \"", filter, "\" is no regular expression: ", error.what()));
  }
  std::vector<testing::Case> cases;
  for (const testing::CaseGroup& group : testing::CaseGroups()) {
    if (!group.is_bench && !all_cases) continue;
    for (const testing::Case& c : group.cases) {
      if (std::regex_search(c.name, pattern)) cases.push_back(c);
    }
  }
  if (cases.empty()) {
    return absl::NotFoundError(
        absl::StrCat("--filter: \"", filter, "\" matches no case; --list prints their names",
                     all_cases ? "" : ", --all_cases adds those of the conformance tests"));
  }
  return cases;
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
        CheckAtLeast("min_time_ms", absl::GetFlag(FLAGS_min_time_ms), 0)}) {
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

absl::Status Bench() {
  if (absl::Status status = CheckFlags(); !status.ok()) return status;
  const auto cases = ChooseCases(absl::GetFlag(FLAGS_filter), absl::GetFlag(FLAGS_all_cases));
  if (!cases.ok()) return cases.status();
  const int threads = absl::GetFlag(FLAGS_threads);
  const auto backends = ChooseBackends(absl::GetFlag(FLAGS_backend), threads);
  if (!backends.ok()) return backends.status();
  if (absl::GetFlag(FLAGS_list)) {
    for (const testing::Case& c : *cases) std::printf("%s\n", c.name.c_str());
    return absl::OkStatus();
  }
  const MeasureOptions options{.rounds = absl::GetFlag(FLAGS_rounds),
                               .min_time_ms = absl::GetFlag(FLAGS_min_time_ms)};
  std::vector<Row> rows;
  for (size_t i = 0; i < cases->size(); ++i) {
    ShowProgress(i, cases->size(), (*cases)[i].name);
    const auto measured = Measure((*cases)[i], *backends, options);
    if (!measured.ok()) return measured.status();
    rows.insert(rows.end(), measured->begin(), measured->end());
  }
  ShowProgress(cases->size(), cases->size(), "");
  const std::string report = absl::GetFlag(FLAGS_json)
                                 ? ToJson(rows)
                                 : absl::StrCat(Recipe(threads, options), ToTable(rows));
  std::fputs(report.c_str(), stdout);
  return absl::OkStatus();
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
  if (absl::Status status = attnd::bench::Bench(); !status.ok()) {
    std::fprintf(stderr, "kernel_bench: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
