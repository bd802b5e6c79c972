#include "server/scheduler/tenants.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace attnd::server {
namespace {

constexpr int64_t kMaxLimit = int64_t{1} << 50;

absl::Status Invalid(absl::string_view what, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", absl::CHexEscape(what.substr(0, 100)), "\": ", why));
}

// "weight=4"
absl::Status ParseSetting(absl::string_view text, TenantSpec& tenant) {
  const struct {
    absl::string_view key;
    int64_t TenantSpec::*value;
    int64_t max;
  } settings[] = {
      {"weight", &TenantSpec::weight, kMaxWeight},
      {"max_queue_requests", &TenantSpec::max_queue_requests, kMaxLimit},
      {"max_queue_bytes", &TenantSpec::max_queue_bytes, kMaxLimit},
  };
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('=', 1));
  for (const auto& setting : settings) {
    if (parts.first != setting.key) continue;
    int64_t value = 0;
    if (!absl::SimpleAtoi(parts.second, &value) || value < 1 || value > setting.max) {
      return Invalid(text, absl::StrCat("must be a number from 1 to ", setting.max));
    }
    tenant.*setting.value = value;
    return absl::OkStatus();
  }
  return Invalid(text, "must be weight=N, max_queue_requests=N or max_queue_bytes=N");
}

absl::Status ParseLine(absl::string_view line, std::vector<TenantSpec>& tenants) {
  const absl::string_view text = line.substr(0, line.find('#'));
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  if (words.empty()) return absl::OkStatus();
  if (!IsTenantName(words[0])) {
    return Invalid(words[0], "a tenant's name is 1 to 64 of A-Z a-z 0-9 . _ : -");
  }
  TenantSpec tenant;
  tenant.name = std::string(words[0]);
  const auto is_same = [&](const TenantSpec& other) { return other.name == tenant.name; };
  if (std::any_of(tenants.begin(), tenants.end(), is_same)) {
    return Invalid(words[0], "this tenant is there already");
  }
  for (size_t i = 1; i < words.size(); ++i) {
    if (absl::Status status = ParseSetting(words[i], tenant); !status.ok()) return status;
  }
  tenants.push_back(std::move(tenant));
  return absl::OkStatus();
}

}  // namespace

bool IsTenantName(absl::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::string_view("._:-").find(c) != absl::string_view::npos;
  });
}

absl::StatusOr<std::vector<TenantSpec>> ParseTenants(absl::string_view text) {
  std::vector<TenantSpec> tenants;
  int line_number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    if (absl::Status status = ParseLine(line, tenants); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("line ", line_number, ": ", status.message()));
    }
  }
  const auto is_default = [](const TenantSpec& tenant) { return tenant.name == kDefaultTenant; };
  if (std::none_of(tenants.begin(), tenants.end(), is_default)) tenants.emplace_back();
  if (tenants.size() > kMaxTenants) {
    return absl::InvalidArgumentError(absl::StrCat(
        tenants.size(), " tenants with the default one, ", kMaxTenants, " are the most"));
  }
  return tenants;
}

absl::StatusOr<std::vector<TenantSpec>> ReadTenants(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read, or is empty"));
  }
  absl::StatusOr<std::vector<TenantSpec>> tenants = ParseTenants(text.str());
  if (tenants.ok()) return tenants;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", tenants.status().message()));
}

}  // namespace attnd::server
