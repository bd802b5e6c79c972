#include "tests/bench/ceiling.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "absl/strings/str_format.h"
#include "kernels/cpu/features.h"

namespace attnd::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Work of one call of a loop: some 10 us of products, or a block of memory.
constexpr int64_t kSteps = 1000;
// As much as the benchmarks of decode read. Of half of that an L3 of hundreds of MiB, which one
// process may have to itself, keeps a part.
constexpr int64_t kReadBytes = int64_t{1} << 30;
constexpr int64_t kReadBlockBytes = 1 << 20;

#if defined(__x86_64__)
// As LDTILECFG reads it: eight registers of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t rest[15] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfig kTileConfig;

// 2 x 2 tiles of sums from two and two factors, as the kernel has them. Returns operations.
__attribute__((target("amx-tile,amx-bf16"))) double MultiplyTiles() {
  asm volatile("ldtilecfg %0" : : "m"(kTileConfig));
  for (int64_t i = 0; i < kSteps; ++i) {
    asm volatile(
        "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n"
        "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n"
        "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n"
        "tdpbf16ps %%tmm7, %%tmm5, %%tmm3\n"
        :
        :);
  }
  asm volatile("tilerelease");
  return kSteps * 4.0 * 16 * 16 * 32 * 2;
}

// Ten independent sums: two units of latency 4 want eight. The empty statement keeps the loop.
__attribute__((target("avx512f"))) double MultiplyAvx512() {
  __m512 sums[10];
  for (__m512& sum : sums) sum = _mm512_set1_ps(1.0f);
  const __m512 factor = _mm512_set1_ps(0.5f);
  for (int64_t i = 0; i < kSteps; ++i) {
    for (__m512& sum : sums) {
      sum = _mm512_fmadd_ps(sum, factor, factor);
      asm volatile("" : "+v"(sum));
    }
  }
  return kSteps * 10.0 * 16 * 2;
}

// Likewise of pairs: each sum takes two multiply-adds.
__attribute__((target("avx512f,avx512bf16"))) double MultiplyAvx512Pairs() {
  __m512 sums[10];
  for (__m512& sum : sums) sum = _mm512_set1_ps(1.0f);
  const __m512 halves = _mm512_castsi512_ps(_mm512_set1_epi32(0x3f003f00));
  __m512bh factor;
  std::memcpy(&factor, &halves, sizeof factor);
  for (int64_t i = 0; i < kSteps; ++i) {
    for (__m512& sum : sums) {
      sum = _mm512_dpbf16_ps(sum, factor, factor);
      asm volatile("" : "+v"(sum));
    }
  }
  return kSteps * 10.0 * 32 * 2;
}

__attribute__((target("avx2,fma"))) double MultiplyAvx2() {
  __m256 sums[10];
  for (__m256& sum : sums) sum = _mm256_set1_ps(1.0f);
  const __m256 factor = _mm256_set1_ps(0.5f);
  for (int64_t i = 0; i < kSteps; ++i) {
    for (__m256& sum : sums) {
      sum = _mm256_fmadd_ps(sum, factor, factor);
      asm volatile("" : "+x"(sum));
    }
  }
  return kSteps * 10.0 * 8 * 2;
}
#endif

// Reads the memory block by block, every thread the next one. Returns bytes.
class Reader {
 public:
  static absl::StatusOr<std::unique_ptr<Reader>> Create() {
    constexpr int64_t kWords = kReadBytes / int64_t{sizeof(uint64_t)};
    std::unique_ptr<uint64_t[]> memory(new (std::nothrow) uint64_t[kWords]);
    if (memory == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("no memory of %d bytes for the ceiling of reading", kReadBytes));
    }
    for (int64_t i = 0; i < kWords; ++i) memory[i] = static_cast<uint64_t>(i);
    return std::make_unique<Reader>(std::move(memory));
  }
  explicit Reader(std::unique_ptr<uint64_t[]> memory) : memory_(std::move(memory)) {}

  double ReadBlock() {
    constexpr int64_t kWords = kReadBlockBytes / int64_t{sizeof(uint64_t)};
    constexpr int64_t kBlocks = kReadBytes / kReadBlockBytes;
    const uint64_t* block = memory_.get() + next_.fetch_add(1) % kBlocks * kWords;
    uint64_t sum = 0;
    // Asked for 4 KiB ahead: the processor's own prefetching stops at every page.
    constexpr int64_t kLineWords = 8, kAheadWords = 512;
    for (int64_t line = 0; line < kWords; line += kLineWords) {
      if (line + kAheadWords < kWords) __builtin_prefetch(block + line + kAheadWords);
      for (int64_t i = 0; i < kLineWords; ++i) sum += block[line + i];
    }
    asm volatile("" : : "r"(sum));
    return kReadBlockBytes;
  }

 private:
  const std::unique_ptr<uint64_t[]> memory_;
  std::atomic<int64_t> next_{0};
};

// Work a second, of `threads` threads that call `loop` until the time has passed.
template <typename Loop>
double Rate(int threads, int min_time_ms, Loop loop) {
  std::atomic<int> ready{0};
  std::vector<double> rates(static_cast<size_t>(threads));
  const auto run = [&](int thread) {
    ready.fetch_add(1);
    while (ready.load() < threads) std::this_thread::yield();
    const auto start = Clock::now();
    const auto end = start + std::chrono::milliseconds(std::max(min_time_ms, 1));
    double work = 0;
    auto now = start;
    do {
      work += loop();
      now = Clock::now();
    } while (now < end);
    rates[static_cast<size_t>(thread)] = work / std::chrono::duration<double>(now - start).count();
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
  run(0);
  for (std::thread& other : others) other.join();
  double sum = 0;
  for (double rate : rates) sum += rate;
  return sum;
}

template <typename Loop>
Ceiling Measure(const char* name, const char* unit, double scale, int threads, int rounds,
                int min_time_ms, Loop loop) {
  std::vector<double> values;
  for (int round = 0; round < rounds; ++round) {
    values.push_back(Rate(threads, min_time_ms, loop) * scale);
  }
  std::nth_element(values.begin(), values.begin() + rounds / 2, values.end());
  return {name, unit, values[static_cast<size_t>(rounds / 2)]};
}

}  // namespace

absl::StatusOr<std::vector<Ceiling>> MeasureCeilings(int threads, int rounds, int min_time_ms) {
  std::vector<Ceiling> ceilings;
  const auto add = [&](const char* name, const char* unit, double scale, auto loop) {
    ceilings.push_back(Measure(name, unit, scale, threads, rounds, min_time_ms, loop));
  };
#if defined(__x86_64__)
  if (kernels::cpu::AmxAvailable().ok()) add("amx_bf16", "tflops", 1e-12, &MultiplyTiles);
  if (kernels::cpu::Avx512BF16Available().ok()) {
    add("avx512_bf16", "tflops", 1e-12, &MultiplyAvx512Pairs);
  }
  if (kernels::cpu::Avx512Available().ok()) add("avx512_f32", "tflops", 1e-12, &MultiplyAvx512);
  if (kernels::cpu::Avx2Available().ok()) add("avx2_f32", "tflops", 1e-12, &MultiplyAvx2);
#endif
  auto reader = Reader::Create();
  if (!reader.ok()) return reader.status();
  add("read", "gb_per_s", 1e-9, [&] { return (*reader)->ReadBlock(); });
  return ceilings;
}

std::string ToText(const std::vector<Ceiling>& ceilings) {
  std::string text;
  for (const Ceiling& ceiling : ceilings) {
    absl::StrAppendFormat(&text, "ceiling  %-11s  %9.4f %s\n", ceiling.name, ceiling.value,
                          ceiling.unit);
  }
  return text;
}

}  // namespace attnd::bench
