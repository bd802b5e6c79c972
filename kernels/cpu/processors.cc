#include "kernels/cpu/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "kernels/registry.h"

namespace attnd::kernels {
namespace cpu {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

double Ratio(double quota_us, double period_us) {
  return quota_us > 0 && period_us > 0 ? quota_us / period_us : kNoLimit;
}

// Version 2: "max 100000" or "150000 100000".
double LimitOfUnified(const std::string& group) {
  std::istringstream text(ReadFile(group + "/cpu.max"));
  double quota_us = 0, period_us = 0;
  return text >> quota_us >> period_us ? Ratio(quota_us, period_us) : kNoLimit;
}

// Version 1: the quota is -1 for none.
double LimitOfLegacy(const std::string& group) {
  std::istringstream quota(ReadFile(group + "/cpu.cfs_quota_us"));
  std::istringstream period(ReadFile(group + "/cpu.cfs_period_us"));
  double quota_us = 0, period_us = 0;
  return quota >> quota_us && period >> period_us ? Ratio(quota_us, period_us) : kNoLimit;
}

// The least limit of the groups on the way from `path` up to the root. Inside a container the path
// may be that of the host, of which only the root is mounted.
double LimitOnPath(const std::string& root, std::string path,
                   double (*limit_of)(const std::string&)) {
  double limit = limit_of(root);
  while (path.size() > 1) {
    limit = std::min(limit, limit_of(root + path));
    path.resize(path.rfind('/'));
  }
  return limit;
}

}  // namespace

double CgroupProcessors(const std::string& membership, const std::string& root) {
  double limit = kNoLimit;
  // Lines of hierarchy:controllers:path; version 2 has no controllers here.
  for (absl::string_view line : absl::StrSplit(membership, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3 || fields[2].empty() || fields[2][0] != '/') continue;
    if (fields[1].empty()) {
      limit = std::min(limit, LimitOnPath(root, fields[2], &LimitOfUnified));
      continue;
    }
    for (absl::string_view controller : absl::StrSplit(fields[1], ',')) {
      if (controller != "cpu") continue;
      // Mounted as "cpu", beside or in place of "cpu,cpuacct".
      limit = std::min(limit, LimitOnPath(root + "/cpu", fields[2], &LimitOfLegacy));
      limit = std::min(limit, LimitOnPath(root + "/" + fields[1], fields[2], &LimitOfLegacy));
    }
  }
  return limit;
}

}  // namespace cpu

int UsableProcessors() {
  int processors = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t affinity;
  if (sched_getaffinity(0, sizeof(affinity), &affinity) == 0) processors = CPU_COUNT(&affinity);
  const double quota = cpu::CgroupProcessors(cpu::ReadFile("/proc/self/cgroup"), "/sys/fs/cgroup");
  // A part of a processor is worth a thread.
  if (quota < processors) processors = static_cast<int>(std::ceil(quota));
  return std::max(processors, 1);
}

}  // namespace attnd::kernels
