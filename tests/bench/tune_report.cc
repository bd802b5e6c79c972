#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/report.h"
#include "tests/bench/tune.h"

namespace attnd::bench {
namespace {

// A warpgroup's rows: kernels/cuda/sm90a/config.h.
constexpr int64_t kWarpgroupRows = 64;

// As config.h spells them.
const char* FamilyConstant(kernels::Family family) {
  switch (family) {
    case kernels::Family::kFull:
      return "kFull";
    case kernels::Family::kCausal:
      return "kCausal";
    case kernels::Family::kGeneral:
      return "kGeneral";
  }
  return "?";
}

// One configuration at one length.
struct Total {
  int configuration = 0;
  const TuneRow* row = nullptr;  // the first of its dtypes
  double log_us = 0;             // sum over dtypes
  int dtypes = 0;                // for which it is right
};

using Key = std::pair<int, kernels::Family>;  // head_dim class

// Those that are right for all dtypes, the fastest first.
std::vector<Total> Ranked(const std::map<int, Total>& by_configuration) {
  int dtypes = 0;
  for (const auto& [configuration, total] : by_configuration) {
    dtypes = std::max(dtypes, total.dtypes);
  }
  std::vector<Total> ranked;
  for (const auto& [configuration, total] : by_configuration) {
    if (total.dtypes == dtypes) ranked.push_back(total);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Total& a, const Total& b) { return a.log_us < b.log_us; });
  return ranked;
}

// "2048 +3.1 %": the length, and how much faster the best is than the next.
std::string LengthAndGain(int64_t length, const std::vector<Total>& ranked) {
  if (ranked.size() < 2) return absl::StrCat(length);
  const double gain = std::exp((ranked[1].log_us - ranked[0].log_us) / ranked[0].dtypes) - 1;
  return absl::StrFormat("%d %+.1f %%", length, 100 * gain);
}

}  // namespace

std::string ToTable(const std::vector<TuneRow>& rows) {
  size_t case_width = 4;
  size_t kernel_width = 6;
  for (const TuneRow& row : rows) {
    case_width = std::max(case_width, row.row.case_name.size());
    kernel_width = std::max(kernel_width, row.row.kernel.size());
  }
  std::string table = absl::StrFormat("%-*s  %-*s  %12s  %9s  %9s  best\n", case_width, "case",
                                      kernel_width, "kernel", "median_us", "TFLOP/s", "rel_error");
  for (const TuneRow& row : rows) {
    absl::StrAppendFormat(&table, "%-*s  %-*s  %12.1f  %9.4f  %9.2e  %s\n", case_width,
                          row.row.case_name, kernel_width, row.row.kernel, row.row.timing.median_us,
                          row.row.tflops, row.row.timing.rel_error,
                          !row.is_right ? "WRONG"
                          : row.is_best ? "*"
                                        : "-");
  }
  return table;
}

std::string ToConfigLines(const std::vector<TuneRow>& rows) {
  std::map<Key, std::map<int64_t, std::map<int, Total>>> totals;
  for (const TuneRow& row : rows) {
    if (!row.is_right) continue;
    const Key key{row.plan.key.head_dim_class, row.plan.key.family};
    Total& total = totals[key][row.row.shape.kv_len][row.configuration];
    if (total.row == nullptr) total = {row.configuration, &row, 0, 0};
    total.log_us += std::log(row.row.timing.median_us);
    ++total.dtypes;
  }
  std::string lines;
  for (const auto& [key, by_length] : totals) {
    int last = -1;
    for (const auto& [length, by_configuration] : by_length) {
      const std::vector<Total> ranked = Ranked(by_configuration);
      const Total& best = ranked[0];
      if (best.configuration != last) {
        absl::StrAppendFormat(
            &lines, "%sATTND_CONFIG(%d, %s, %d, %d, %d, kStages, kQStages)  // configuration %d: ",
            last < 0 ? "" : "\n", key.first, FamilyConstant(key.second), last < 0 ? 0 : length,
            best.row->plan.q_tile / kWarpgroupRows, best.row->plan.kv_tile, best.configuration);
      } else {
        absl::StrAppend(&lines, ", ");
      }
      absl::StrAppend(&lines, LengthAndGain(length, ranked));
      last = best.configuration;
    }
    absl::StrAppend(&lines, "\n");
  }
  return lines;
}

std::string ToJson(const std::vector<TuneRow>& rows) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const TuneRow& row : rows) {
    nlohmann::ordered_json object = ToObject(row.row);
    object.erase("peak_rss_mb");
    object["configuration"] = row.configuration;
    object["family"] = kernels::FamilyName(row.plan.key.family);
    object["q_tile"] = row.plan.q_tile;
    object["kv_tile"] = row.plan.kv_tile;
    object["is_right"] = row.is_right;
    object["is_best"] = row.is_best;
    array.push_back(std::move(object));
  }
  return array.dump(2) + "\n";
}

}  // namespace attnd::bench
