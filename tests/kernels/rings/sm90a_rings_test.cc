// The rings through which a Hopper block's warps hand tiles and items on, run on host threads: the
// kernel's own dealer, producer, scanner and consumers, with counting barriers under them. A block
// that stops before its work is done, or leaves work undone, shows here, where there is a debugger
// and no GPU to hang.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/kernels/rings/device.h"
// Device code from here on.
#define __CUDACC__ 1
#include "kernels/cuda/sm90a/params.h"
#include "kernels/cuda/work.cuh"
// 32 lanes copy a problem; here is one.
#define CopyProblemWord(target, source, lane) ((target) = (source))
#include "kernels/cuda/sm90a/consumer.cuh"
#include "kernels/cuda/sm90a/dealer.cuh"
#include "kernels/cuda/sm90a/producer.cuh"
#include "kernels/cuda/sm90a/scanner.cuh"

namespace attnd::kernels::cuda::sm90a {
namespace {

constexpr int kFar = 1 << 30;

template <class T>
void RunWarp(int warp, const LaunchParams& params, Shared<T>& shared) {
  host_thread.x = 32 * warp;
  try {
    if (warp == 0) {
      Producer<T>{params, shared}.Run();
    } else if (warp == 1) {
      Dealer<T>{params, shared}.Run();
    } else if (warp >= 4) {
      const int consumer = warp / 4 - 1;
      Consumer<T>{shared, consumer, {consumer}}.Run(params.poisoned_tiles);
    } else if constexpr (T::kScan) {
      Scanner<T>{shared, 32 * (warp - 2)}.Run();
    }
  } catch (const ptx::Stopped&) {
  }
}

// False if the block stood still for ten seconds.
template <class T>
bool RunBlock(const LaunchParams& params) {
  const auto shared = std::make_unique<Shared<T>>();
  // Nothing is initialised on a GPU.
  std::memset(static_cast<void*>(shared.get()), 0xcd, sizeof(Shared<T>));
  ptx::Barriers barriers;
  ptx::barriers = &barriers;
  ptx::shared_base = reinterpret_cast<unsigned char*>(shared.get());
  InitBarriers(*shared);
  std::atomic<int> running{T::kThreads / 32};
  std::vector<std::thread> warps;
  for (int warp = 0; warp < T::kThreads / 32; ++warp) {
    warps.emplace_back([&, warp] {
      RunWarp<T>(warp, params, *shared);
      --running;
    });
  }
  int64_t last_steps = -1;
  for (int still_ms = 0; running > 0 && still_ms < 10000;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const int64_t steps = barriers.steps;
    still_ms = steps == last_steps ? still_ms + 1 : 0;
    last_steps = steps;
  }
  const bool ended = running == 0;
  barriers.stop = true;
  for (std::thread& warp : warps) warp.join();
  return ended;
}

// Warpgroup by warpgroup, the key tiles that each has to work on.
template <class T>
int64_t OwnTiles(const ProblemDesc& d) {
  int64_t tiles = 0;
  for (int row = 0; row < d.q_len; row += 64) {
    const KeyTiles own = KeyTilesOf<T>(d, row, std::min(row + 64, d.q_len));
    tiles += own.last - own.first + 1;
  }
  return tiles * d.batch * d.q_heads;
}

template <class Config>
class Sm90aRings : public ::testing::Test {
 protected:
  std::mt19937 random_{20261130};
  std::vector<unsigned char> memory_ = std::vector<unsigned char>(4096);
  unsigned long long counters_[2] = {};

  int Random(int begin, int end) { return begin + static_cast<int>(random_() % (end - begin)); }

  // Odd lengths, no keys at all, bands on either side of the rows.
  ProblemDesc RandomProblem() {
    ProblemDesc d = {};
    d.q = d.k = d.v = d.o = memory_.data();
    d.batch = Random(1, 3);
    d.q_heads = Random(1, 4);
    d.group = 1;
    d.q_len = Random(1, 700);
    d.kv_len = Random(0, 5) == 0 ? Random(0, 3) : Random(1, 900);
    d.head_dim = 1;
    d.n_q_tiles = (d.q_len + Config::kQTile - 1) / Config::kQTile;
    d.section_heads = Random(1, 1 + d.batch * d.q_heads);
    d.small_sections = Random(0, 1 + d.batch * d.q_heads / d.section_heads);
    d.band_lo = -kFar;
    d.band_hi = kFar - 1;
    if (Config::kFamily == KernelFamily::kCausal)
      d.band_hi = Random(0, 2) == 0 ? 0 : d.kv_len - d.q_len;
    if (Config::kFamily == KernelFamily::kGeneral) {
      d.band_lo = Random(-800, 200);
      d.band_hi = Random(-300, 900);
    }
    d.scale = 1;
    return d;
  }
};

template <KernelFamily kFamily, int... kNumbers>
using Kernel = Traits<Half, kFamily, TileConfig<kNumbers...>>;
using Kernels = ::testing::Types<
    Kernel<KernelFamily::kFull, 64, 3, 128, 2, 2>, Kernel<KernelFamily::kFull, 64, 2, 160, 2, 2>,
    Kernel<KernelFamily::kFull, 64, 2, 80, 2, 1>, Kernel<KernelFamily::kCausal, 64, 3, 128, 2, 2>,
    Kernel<KernelFamily::kCausal, 64, 2, 128, 2, 2>, Kernel<KernelFamily::kCausal, 64, 2, 64, 2, 1>,
    Kernel<KernelFamily::kGeneral, 64, 2, 96, 2, 2>,
    Kernel<KernelFamily::kGeneral, 64, 2, 64, 2, 1>>;
TYPED_TEST_SUITE(Sm90aRings, Kernels);

TYPED_TEST(Sm90aRings, EveryItemIsWorkedOnAndNobodyWaitsForEver) {
  using T = TypeParam;
  for (int run = 0; run < 25; ++run) {
    auto params = std::make_unique<LaunchParams>();
    params->n_problems = this->Random(1, 5);
    params->next_item = this->counters_;
    params->poisoned_tiles = this->counters_ + 1;
    int64_t tiles = 0;
    for (int i = 0; i < params->n_problems; ++i) {
      ProblemDesc& d = params->inline_problems[i].desc;
      d = this->RandomProblem();
      d.first_item = params->n_items;
      params->n_items += int64_t{d.n_q_tiles} * d.batch * d.q_heads;
      tiles += OwnTiles<T>(d);
    }
    nan_per_mille = run % 3 == 2 ? 100 : 0;
    output_products = 0;
    ASSERT_TRUE(RunBlock<T>(*params)) << "run " << run << " stood still";
    EXPECT_EQ(this->counters_[0], 0u) << "ready for the next launch";
    // Four warps a warpgroup, a product for each 16 keys; more only where items were done again.
    const int64_t products = tiles * 4 * (T::kKvTile / 16);
    if (T::kScan && nan_per_mille > 0) {
      EXPECT_GE(output_products, products);
      EXPECT_LE(output_products, 2 * products);
    } else {
      EXPECT_EQ(output_products, products);
    }
  }
}

}  // namespace
}  // namespace attnd::kernels::cuda::sm90a
