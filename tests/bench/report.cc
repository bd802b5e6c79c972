#include "tests/bench/report.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/registry.h"

namespace attnd::bench {
namespace {

std::string ProcessorName() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

constexpr const char* kCompiler =
#if defined(__clang__)
    "clang " __clang_version__;
#else
    "gcc " __VERSION__;
#endif

}  // namespace

std::string Machine() {
  return absl::StrFormat("# %s, %d of its processors usable\n# %s; %s\n", ProcessorName(),
                         kernels::UsableProcessors(), kCompiler,
                         absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone()));
}

std::string Recipe(int threads, const MeasureOptions& options) {
  return absl::StrFormat(
      "%s# threads: %s; medians of %d rounds of at least %d ms, backends alternating, warm caches; "
      "data seed %d\n",
      Machine(), threads > 0 ? absl::StrCat(threads) : "all", options.rounds, options.min_time_ms,
      options.seed);
}

std::string ToTable(const std::vector<Row>& rows) {
  size_t case_width = 4;
  size_t backend_width = 7;
  for (const Row& row : rows) {
    case_width = std::max(case_width, row.case_name.size());
    backend_width = std::max(backend_width, row.backend.size());
  }
  std::string table =
      absl::StrFormat("%-*s  %-*s  %12s  %9s  %9s  %11s\n", case_width, "case", backend_width,
                      "backend", "median_us", "TFLOP/s", "rel_error", "peak_rss_mb");
  for (const Row& row : rows) {
    absl::StrAppendFormat(&table, "%-*s  %-*s  %12.1f  %9.4f  %9.2e  %11.1f\n", case_width,
                          row.case_name, backend_width, row.backend, row.timing.median_us,
                          row.tflops, row.timing.rel_error, row.timing.peak_rss_mb);
  }
  return table;
}

nlohmann::ordered_json ToObject(const Row& row) {
  return {{"backend", row.backend},
          {"kernel", row.kernel},
          {"dtype", DTypeName(row.shape.dtype)},
          {"mask", row.mask},
          {"batch", row.shape.batch},
          {"q_heads", row.shape.q_heads},
          {"kv_heads", row.shape.kv_heads},
          {"q_len", row.shape.q_len},
          {"kv_len", row.shape.kv_len},
          {"head_dim", row.shape.head_dim},
          {"median_us", row.timing.median_us},
          {"tflops", row.tflops},
          {"rel_error", row.timing.rel_error},
          {"peak_rss_mb", row.timing.peak_rss_mb}};
}

std::string ToJson(const std::vector<Row>& rows, const std::vector<Ceiling>& ceilings) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const Row& row : rows) array.push_back(ToObject(row));
  for (const Ceiling& ceiling : ceilings) {
    array.push_back({{"ceiling", ceiling.name}, {ceiling.unit, ceiling.value}});
  }
  return array.dump(2) + "\n";
}

}  // namespace attnd::bench
