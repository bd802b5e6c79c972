#include "client/tools/load/work_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace attnd::tools {
namespace {

struct Line {
  CallKind kind;
  absl::optional<double> at_ms;
  bool has_weight = false;
};

absl::Status SetAt(absl::string_view value, Line* line) {
  double at_ms = 0;
  if (!absl::SimpleAtod(value, &at_ms) || !(at_ms >= 0) || !std::isfinite(at_ms)) {
    return absl::InvalidArgumentError(
        absl::StrCat("at_ms is \"", value, "\", must be a number of 0 or more"));
  }
  line->at_ms = at_ms;
  return absl::OkStatus();
}

absl::Status SetWord(absl::string_view word, Line* line) {
  const std::vector<absl::string_view> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
  if (parts.size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat("\"", word, "\" is not NAME=VALUE"));
  }
  line->has_weight |= parts[0] == "weight";
  if (parts[0] == "at_ms") return SetAt(parts[1], line);
  return SetField(parts[0], parts[1], &line->kind);
}

// Of a line that says something; *is_default: it is the defaults of those below.
absl::StatusOr<Line> ReadLine(absl::string_view text, const CallKind& defaults, bool* is_default) {
  Line line;
  line.kind = defaults;
  absl::string_view words = absl::StripAsciiWhitespace(text.substr(0, text.find('#')));
  *is_default = absl::ConsumePrefix(&words, "default ");
  for (absl::string_view word :
       absl::StrSplit(words, absl::ByAnyChar(" \t\r"), absl::SkipEmpty())) {
    if (absl::Status status = SetWord(word, &line); !status.ok()) return status;
  }
  if (absl::Status status = CheckSizes(line.kind); !status.ok()) return status;
  return line;
}

bool IsBlank(absl::string_view text) {
  return text.substr(0, text.find('#')).find_first_not_of(" \t\r") == absl::string_view::npos;
}

// Calls `use` with each line that says something; it returns what is wrong with one.
absl::Status ForEachLine(const std::string& path, CallKind defaults,
                         const std::function<absl::Status(const Line&)>& use) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  std::ifstream file(path);
  if (error || !file) return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  if (static_cast<int64_t>(bytes) > kMostWorkFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", bytes, " bytes, must have ", kMostWorkFileBytes, " at most"));
  }
  int64_t number = 0;
  int64_t used = 0;
  for (std::string text; std::getline(file, text);) {
    ++number;
    if (IsBlank(text)) continue;
    bool is_default = false;
    const absl::StatusOr<Line> line = ReadLine(text, defaults, &is_default);
    absl::Status status = line.status();
    if (status.ok() && is_default) {
      defaults = line->kind;
      if (line->at_ms || line->has_weight) {
        status = absl::InvalidArgumentError("at_ms and weight have no default");
      }
    } else if (status.ok()) {
      ++used;
      status = use(*line);
    }
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": ", status.message()));
    }
  }
  if (used == 0) return absl::InvalidArgumentError(absl::StrCat(path, ": has no line of a call"));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<CallKind>> ReadMix(const std::string& path, const CallKind& defaults) {
  std::vector<CallKind> kinds;
  const absl::Status status = ForEachLine(path, defaults, [&](const Line& line) {
    if (line.at_ms) return absl::InvalidArgumentError("at_ms is for traces");
    kinds.push_back(line.kind);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return kinds;
}

absl::StatusOr<Trace> ReadTrace(const std::string& path, const CallKind& defaults) {
  Trace trace;
  double last_ms = 0;
  const absl::Status status = ForEachLine(path, defaults, [&](const Line& line) {
    if (line.has_weight) return absl::InvalidArgumentError("weight is for mixes");
    if (!line.at_ms) return absl::InvalidArgumentError("at_ms is missing");
    if (*line.at_ms < last_ms) {
      return absl::InvalidArgumentError(
          absl::StrCat("at_ms is ", *line.at_ms, ", must not be before the last line's ", last_ms));
    }
    last_ms = *line.at_ms;
    const auto known = std::find(trace.kinds.begin(), trace.kinds.end(), line.kind);
    trace.arrivals.push_back(
        {absl::Milliseconds(*line.at_ms), static_cast<size_t>(known - trace.kinds.begin())});
    if (known == trace.kinds.end()) trace.kinds.push_back(line.kind);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return trace;
}

}  // namespace attnd::tools
