// The process's largest resident set, resettable, as Linux keeps it.
#ifndef ATTND_TESTS_BENCH_PEAK_RSS_H_
#define ATTND_TESTS_BENCH_PEAK_RSS_H_

namespace attnd::bench {

// From here on the peak counts anew. Where the kernel refuses, the peak stays that of the whole
// process so far.
void ResetPeakRss();

// 2^20 bytes.
double PeakRssMb();

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_PEAK_RSS_H_
