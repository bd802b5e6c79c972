// How many processors this process may keep busy.
#ifndef ATTND_KERNELS_CPU_PROCESSORS_H_
#define ATTND_KERNELS_CPU_PROCESSORS_H_

#include <string>

namespace attnd::kernels::cpu {

// Processors' worth of time that the control groups of this process allow, or infinity.
//
// `membership` is the text of /proc/self/cgroup and `root` is /sys/fs/cgroup. Version 2 (cpu.max)
// and version 1 (cpu.cfs_quota_us, cpu.cfs_period_us) are understood; every group up to the root
// counts. What cannot be read sets no limit.
double CgroupProcessors(const std::string& membership, const std::string& root);

}  // namespace attnd::kernels::cpu

#endif  // ATTND_KERNELS_CPU_PROCESSORS_H_
