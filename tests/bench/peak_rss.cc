#include "tests/bench/peak_rss.h"

#include <malloc.h>

#include <fstream>
#include <string>

namespace attnd::bench {

void ResetPeakRss() {
  // What tests and fp64 have freed must not count.
  malloc_trim(0);
  // proc(5): 5 resets VmHWM to the resident set of now.
  std::ofstream("/proc/self/clear_refs") << "5" << std::flush;
}

double PeakRssMb() {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    double value_kb = 0;
    if (key == "VmHWM:" && status >> value_kb) return value_kb / 1024;
    std::getline(status, key);
  }
  return 0;
}

}  // namespace attnd::bench
