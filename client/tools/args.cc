#include "client/tools/args.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace attnd::tools {
namespace {

absl::Status BadValue(const std::string& name, const std::string& value,
                      const std::string& wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, " is \"", value, "\", must be ", wanted));
}

}  // namespace

std::string FlagsUsage(const std::vector<Flag>& flags) {
  size_t width = 0;
  for (const Flag& flag : flags) {
    width = std::max(width, flag.name.size() + flag.value.size() + 1);
  }
  std::string usage;
  for (const Flag& flag : flags) {
    const std::string head = flag.name + (flag.value.empty() ? "" : " " + flag.value);
    absl::StrAppend(&usage, "  --", head, std::string(width + 2 - head.size(), ' '), flag.help,
                    "\n");
  }
  return usage;
}

absl::StatusOr<Args> Args::Parse(const std::vector<std::string>& words,
                                 const std::vector<Flag>& flags) {
  Args args;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (!absl::StartsWith(word, "--")) {
      return absl::InvalidArgumentError(absl::StrCat("\"", word, "\" is not a flag"));
    }
    const size_t equals = word.find('=');
    const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
    const auto flag = std::find_if(flags.begin(), flags.end(),
                                   [&](const Flag& known) { return known.name == name; });
    if (flag == flags.end()) {
      return absl::InvalidArgumentError(absl::StrCat("there is no flag --", name));
    }
    std::string value;
    if (flag->value.empty()) {
      if (equals != std::string::npos) {
        return absl::InvalidArgumentError(absl::StrCat("--", name, " takes no value"));
      }
    } else if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (i + 1 < words.size() && !absl::StartsWith(words[i + 1], "--")) {
      value = words[++i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value: ", flag->value));
    }
    if (!args.values_.emplace(name, value).second) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " stands twice"));
    }
  }
  return args;
}

absl::optional<std::string> Args::Get(const std::string& name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return absl::nullopt;
  return found->second;
}

absl::Status Args::Read(const std::string& name, std::string* value) const {
  if (const auto text = Get(name)) *value = *text;
  return absl::OkStatus();
}

absl::Status Args::Read(const std::string& name, int64_t min, int64_t max, int64_t* value) const {
  const auto text = Get(name);
  if (!text) return absl::OkStatus();
  int64_t parsed = 0;
  if (!absl::SimpleAtoi(*text, &parsed) || parsed < min || parsed > max) {
    return BadValue(name, *text, absl::StrCat("a whole number in ", min, "..", max));
  }
  *value = parsed;
  return absl::OkStatus();
}

absl::Status Args::Read(const std::string& name, double min, double max, double* value) const {
  const auto text = Get(name);
  if (!text) return absl::OkStatus();
  double parsed = 0;
  if (!absl::SimpleAtod(*text, &parsed) || !(parsed >= min && parsed <= max)) {
    return BadValue(name, *text, absl::StrCat("a number in ", min, "..", max));
  }
  *value = parsed;
  return absl::OkStatus();
}

absl::Status Args::Read(const std::string& name, absl::Duration* value) const {
  const auto text = Get(name);
  if (!text) return absl::OkStatus();
  absl::Duration parsed;
  double seconds = 0;
  if (absl::SimpleAtod(*text, &seconds) && std::isfinite(seconds)) {
    parsed = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(*text, &parsed)) {
    return BadValue(name, *text, "a time, such as 10s or 500ms");
  }
  if (parsed <= absl::ZeroDuration() || parsed == absl::InfiniteDuration()) {
    return BadValue(name, *text, "above 0 and finite");
  }
  *value = parsed;
  return absl::OkStatus();
}

}  // namespace attnd::tools
