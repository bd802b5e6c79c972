#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/shares.h"

namespace attnd::kernels::cpu {
namespace {

// What one thread gets that works alone.
std::vector<int64_t> All(Shares& shares, int64_t wish) {
  std::vector<int64_t> items;
  for (int64_t i = shares.First(wish); i >= 0; i = shares.Next(wish)) items.push_back(i);
  return items;
}

TEST(Shares, OneShareIsTheListsOrderForAll) {
  Shares shares(4, 1);
  int64_t a = 0, b = 3;
  EXPECT_EQ(shares.First(a), 0);
  EXPECT_EQ(shares.First(b), 1);
  EXPECT_EQ(shares.Next(a), 2);
  EXPECT_EQ(shares.Next(b), 3);
  EXPECT_EQ(shares.Next(a), -1);
  EXPECT_EQ(shares.Next(b), -1);
}

TEST(Shares, AThreadFinishesItsShareThenHelpsWithTheFollowingOnes) {
  Shares shares(7, 3);  // 0 1, 2 3, 4 5 6
  EXPECT_EQ(All(shares, 1), (std::vector<int64_t>{2, 3, 4, 5, 6, 0, 1}));
  EXPECT_EQ(All(shares, 0), std::vector<int64_t>{});
}

TEST(Shares, AWishIsGrantedUnlessTheShareHasBegun) {
  Shares shares(6, 3);
  int64_t a = 2, b = 2, c = 5, d = 1;
  EXPECT_EQ(shares.First(a), 4);
  EXPECT_EQ(shares.First(b), 0);  // the first that follows
  EXPECT_EQ(shares.First(c), 2);  // as 5 is 2 among three, which has begun, and so has 0
  EXPECT_EQ(a, 2);
  EXPECT_EQ(b, 0);
  EXPECT_EQ(c, 1);
  EXPECT_EQ(shares.First(d), 3);  // all have begun: it helps
  EXPECT_EQ(shares.Next(b), 1);
  EXPECT_EQ(shares.Next(a), 5);
  EXPECT_EQ(shares.Next(a), -1);
}

TEST(Shares, MayBeEmpty) {
  Shares none(0, 2), few(2, 4);
  EXPECT_EQ(All(none, 1), std::vector<int64_t>{});
  EXPECT_EQ(All(few, 0), (std::vector<int64_t>{0, 1}));
}

TEST(Shares, ThreadsGetEveryItemOnce) {
  for (const int64_t count : {1, 3, 4}) {
    constexpr int64_t kItems = 1000;
    constexpr int kThreads = 4;
    Shares shares(kItems, count);
    std::vector<std::vector<int64_t>> got(kThreads);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] { got[i] = All(shares, i / 2); });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<int> times(kItems);
    for (const auto& items : got) {
      for (const int64_t item : items) ++times[item];
    }
    EXPECT_EQ(times, std::vector<int>(kItems, 1)) << count;
  }
}

}  // namespace
}  // namespace attnd::kernels::cpu
