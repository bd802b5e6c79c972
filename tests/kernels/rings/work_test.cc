// The order in which a launch's items are dealt: kernels/cuda/work.cuh on the host.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "tests/kernels/rings/device.h"
// Device code from here on.
#include "kernels/cuda/work.cuh"

namespace attnd::kernels::cuda {
namespace {

struct List {
  std::vector<ProblemDesc> problems;
  int64_t n_items = 0;

  void Add(int batch, int q_heads, int n_q_tiles, int section_heads, int small_sections) {
    ProblemDesc d = {};
    d.batch = batch;
    d.q_heads = q_heads;
    d.n_q_tiles = n_q_tiles;
    d.section_heads = section_heads;
    d.small_sections = small_sections;
    d.first_item = n_items;
    n_items += int64_t{n_q_tiles} * batch * q_heads;
    problems.push_back(d);
  }
  template <bool kDescending>
  Item At(int64_t number) const {
    const auto desc_of = [this](int i) -> const ProblemDesc& { return problems[i]; };
    return ItemOf<kDescending>(desc_of, static_cast<int>(problems.size()), number);
  }
};

template <bool kDescending>
void ExpectEveryItemOnce(const List& list) {
  std::set<std::tuple<int, int, int, int>> seen;
  for (int64_t number = 0; number < list.n_items; ++number) {
    const Item item = list.At<kDescending>(number);
    const ProblemDesc& d = list.problems.at(item.problem);
    ASSERT_TRUE(item.batch >= 0 && item.batch < d.batch) << number;
    ASSERT_TRUE(item.q_head >= 0 && item.q_head < d.q_heads) << number;
    ASSERT_TRUE(item.q_tile >= 0 && item.q_tile < d.n_q_tiles) << number;
    seen.insert({item.problem, item.batch, item.q_head, item.q_tile});
  }
  EXPECT_EQ(static_cast<int64_t>(seen.size()), list.n_items);
}

TEST(CudaWork, EveryItemIsDealtOnce) {
  std::mt19937 random{20261130};
  const auto below = [&random](int end) { return static_cast<int>(random() % end); };
  for (int run = 0; run < 200; ++run) {
    List list;
    for (int i = 0; i <= below(5); ++i) {
      const int batch = 1 + below(4);
      const int q_heads = 1 + below(9);
      const int section_heads = 1 + below(batch * q_heads);
      list.Add(batch, q_heads, 1 + below(7), section_heads,
               below(1 + batch * q_heads / section_heads));
    }
    ExpectEveryItemOnce<false>(list);
    ExpectEveryItemOnce<true>(list);
  }
}

// The whole of a section, its longest tiles first, before the next: K and V are read again while
// they are at hand.
TEST(CudaWork, SectionsFollowEachOtherAndTilesDescend) {
  List list;
  list.Add(2, 6, 3, 3, 2);  // twelve heads: sections of three, three and six
  int64_t number = 0;
  for (int section = 0; section < 3; ++section) {
    const int heads = section < 2 ? 3 : 6;
    for (int q_tile = 2; q_tile >= 0; --q_tile) {
      for (int i = 0; i < heads; ++i, ++number) {
        const Item item = list.At<true>(number);
        EXPECT_EQ(item.q_tile, q_tile) << number;
        EXPECT_EQ(item.batch * 6 + item.q_head, 3 * section + i) << number;
      }
    }
  }
  EXPECT_EQ(number, list.n_items);
}

}  // namespace
}  // namespace attnd::kernels::cuda
