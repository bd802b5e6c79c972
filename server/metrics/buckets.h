// Where the buckets of histograms end.
#ifndef ATTND_SERVER_METRICS_BUCKETS_H_
#define ATTND_SERVER_METRICS_BUCKETS_H_

#include <vector>

namespace attnd::server {

// 1-2-5 from the time of a small problem on a GPU to that of a long one on a CPU.
inline const std::vector<double> kStageBuckets = {
    10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3,
    50e-3, 0.1,   0.2,   0.5,    1,      2,      5,    10,   20,   50,    100};

// Coarser, as there is a set of these for each kernel.
inline const std::vector<double> kKernelBuckets = {20e-6, 100e-6, 500e-6, 2e-3, 10e-3,
                                                   50e-3, 0.2,    1,      10};

inline const std::vector<double> kBatchBuckets = {1, 2, 4, 8, 16, 32, 64, 128, 256};

inline const std::vector<double> kFillBuckets = {0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1};

// Powers of two about 1, and 1.2 and its inverse, which is as good as predictions get.
inline const std::vector<double> kRatioBuckets = {0.125, 0.25, 0.5, 0.83, 1.2, 2, 4, 8};

}  // namespace attnd::server

#endif  // ATTND_SERVER_METRICS_BUCKETS_H_
