// Latencies in constant memory.
#ifndef ATTND_CLIENT_TOOLS_LOAD_HISTOGRAM_H_
#define ATTND_CLIENT_TOOLS_LOAD_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace attnd::tools {

// Counts of microseconds, exact below 256, then in steps of 1/128 of a power of two: a percentile
// is off by less than 0.4 %. The maximum is exact. Not thread-safe.
class Histogram {
 public:
  void Add(int64_t value_us) {
    const uint64_t value = std::clamp<int64_t>(value_us, 0, kMost);
    ++counts_[Index(value)];
    ++total_;
    max_us_ = std::max(max_us_, static_cast<int64_t>(value));
  }

  void Merge(const Histogram& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    total_ += other.total_;
    max_us_ = std::max(max_us_, other.max_us_);
  }

  int64_t total() const { return total_; }
  int64_t max_us() const { return max_us_; }

  // The smallest value that `percent` of all values do not pass; 0 without values.
  int64_t PercentileUs(double percent) const {
    const auto rank = static_cast<int64_t>(std::ceil(percent / 100 * total_));
    if (rank >= total_) return max_us_;
    int64_t seen = 0;
    for (size_t i = 0; i < counts_.size(); ++i) {
      seen += counts_[i];
      if (seen >= rank && seen > 0) return std::min(Middle(i), max_us_);
    }
    return 0;
  }

 private:
  static constexpr int kSubBits = 7;
  static constexpr int64_t kMost = (int64_t{1} << 42) - 1;  // 50 days

  static size_t Index(uint64_t value) {
    const int shift = std::max(0, static_cast<int>(std::bit_width(value)) - kSubBits - 1);
    return (static_cast<size_t>(shift) << kSubBits) + (value >> shift);
  }
  static int64_t Middle(size_t index) {
    if (index < (2u << kSubBits)) return static_cast<int64_t>(index);
    const int shift = static_cast<int>(index >> kSubBits) - 1;
    const auto step = static_cast<int64_t>(index - (static_cast<size_t>(shift) << kSubBits));
    return (step << shift) + ((int64_t{1} << shift) >> 1);
  }

  std::array<int64_t, (42 - kSubBits + 1) << kSubBits> counts_{};
  int64_t total_ = 0;
  int64_t max_us_ = 0;
};

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_LOAD_HISTOGRAM_H_
