#include "client/tools/load/page.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/tools/load/rows.h"
#include "client/tools/load/table.h"

namespace attnd::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostCallsNamed = 8;

Json CdfOf(const Histogram& latency) {
  Json points = Json::array();
  for (int percent = 1; percent < 99; ++percent) {
    points.push_back({percent, latency.PercentileUs(percent)});
  }
  for (double percent : {99.0, 99.5, 99.9, 99.99, 100.0}) {
    points.push_back({percent, latency.PercentileUs(percent)});
  }
  return points;
}

Json WindowsOf(const StepResult& result) {
  Json windows = Json::array();
  for (const Window& window : result.windows) {
    windows.push_back({{"begin_s", window.begin_s},
                       {"length_s", window.length_s},
                       {"answered", window.answered},
                       {"failed", window.failed},
                       {"p50_us", window.p50_us},
                       {"p99_us", window.p99_us}});
  }
  return windows;
}

Json DataOf(const std::string& server, const Plan& plan, const RunResult& run) {
  Json data = {{"server", server},         {"calls", Json::array()}, {"offered", Json::array()},
               {"rows", Json::array()},    {"cdf", Json::array()},   {"windows", Json::array()},
               {"slo", SloText(plan, run)}};
  const std::vector<CallKind>& kinds = plan.trace ? plan.trace->kinds : plan.kinds;
  for (size_t i = 0; i < std::min(kinds.size(), kMostCallsNamed); ++i) {
    data["calls"].push_back(Describe(kinds[i]));
  }
  if (kinds.size() > kMostCallsNamed) {
    data["calls"].push_back(absl::StrCat(kinds.size() - kMostCallsNamed, " kinds more"));
  }
  for (size_t i = 0; i < run.steps.size(); ++i) {
    const Step& step = run.steps[i];
    data["offered"].push_back(OfferedText(step.spec));
    data["rows"].push_back(RowOf(plan, step, i + 1));
    data["cdf"].push_back(CdfOf(step.result.latency));
    data["windows"].push_back(WindowsOf(step.result));
  }
  return data;
}

}  // namespace

std::string ToPage(const std::string& server, const Plan& plan, const RunResult& run) {
  // Nothing in it can end the script element, or begin another.
  const std::string data =
      absl::StrReplaceAll(ToJsonLine(DataOf(server, plan, run)), {{"<", "\\u003c"}});
  return absl::StrReplaceAll(kPageHtml, {{"{{data}}", data}});
}

absl::Status WriteTextFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  if (file) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(path, ": cannot be written"));
}

}  // namespace attnd::tools
