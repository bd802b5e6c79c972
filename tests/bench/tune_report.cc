#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
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

struct Total {
  const TuneRow* row = nullptr;  // the first of them
  double log_us = 0;             // sum over dtypes
  int dtypes = 0;
};

using Key = std::pair<int, kernels::Family>;  // head_dim class
using Lengths = std::vector<int64_t>;

// The configuration of most dtypes; of several, the one with the least time.
const TuneRow* Choose(const std::map<int, Total>& by_configuration) {
  const Total* best = nullptr;
  for (const auto& [configuration, total] : by_configuration) {
    if (best == nullptr || total.dtypes > best->dtypes ||
        (total.dtypes == best->dtypes && total.log_us < best->log_us)) {
      best = &total;
    }
  }
  return best == nullptr ? nullptr : best->row;
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
  std::map<std::pair<Key, int64_t>, std::map<int, Total>> totals;
  for (const TuneRow& row : rows) {
    if (!row.is_right) continue;
    const Key key{row.plan.key.head_dim_class, row.plan.key.family};
    Total& total = totals[{key, row.row.shape.q_len}][row.configuration];
    if (total.row == nullptr) total.row = &row;
    total.log_us += std::log(row.row.timing.median_us);
    ++total.dtypes;
  }
  // By key and tiles, with the lengths at which they are the choice.
  std::map<std::tuple<Key, int, int64_t, int64_t>, Lengths> chosen;
  for (const auto& [key_and_length, by_configuration] : totals) {
    const TuneRow& row = *Choose(by_configuration);
    chosen[{key_and_length.first, row.configuration, row.plan.q_tile, row.plan.kv_tile}].push_back(
        key_and_length.second);
  }
  std::string lines;
  for (const auto& [choice, lengths] : chosen) {
    const auto& [key, configuration, q_tile, kv_tile] = choice;
    absl::StrAppendFormat(&lines, "ATTND_CONFIG(%d, %s, %d, %d);  // configuration %d: length %s\n",
                          key.first, FamilyConstant(key.second), q_tile / kWarpgroupRows, kv_tile,
                          configuration, absl::StrJoin(lengths, ", "));
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
