#include "kernels/cpu/thread_pool.h"

#include <atomic>
#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/sync.h"

namespace attnd::kernels::cpu {
namespace {

// Every test holds for threads that sleep at once and for those that first look for work.
class ThreadPoolTest : public testing::TestWithParam<std::chrono::microseconds> {};
INSTANTIATE_TEST_SUITE_P(Spin, ThreadPoolTest,
                         testing::Values(std::chrono::microseconds(0),
                                         std::chrono::microseconds(50),
                                         std::chrono::microseconds(2000)),
                         [](const auto& info) {
                           return std::to_string(info.param.count()) + "us";
                         });

TEST_P(ThreadPoolTest, OneWorkerRunsOnTheCaller) {
  ThreadPool pool(3, GetParam());
  EXPECT_EQ(pool.threads(), 3);
  std::vector<std::thread::id> ran;
  pool.Run(1, [&](int worker) {
    EXPECT_EQ(worker, 0);
    ran.push_back(std::this_thread::get_id());
  });
  EXPECT_EQ(ran, std::vector<std::thread::id>{std::this_thread::get_id()});
}

TEST_P(ThreadPoolTest, WorkersAreDifferentThreadsAndTheCallerIsZero) {
  ThreadPool pool(4, GetParam());
  Mutex mutex;
  CondVar arrived;
  std::set<std::thread::id> threads;
  std::set<int> workers;
  std::thread::id zero;
  // Nobody leaves before all have come, so all four must be there at the same time.
  pool.Run(4, [&](int worker) {
    MutexLock lock(mutex);
    threads.insert(std::this_thread::get_id());
    workers.insert(worker);
    if (worker == 0) zero = std::this_thread::get_id();
    arrived.NotifyAll();
    while (workers.size() < 4) arrived.Wait(mutex);
  });
  EXPECT_EQ(workers, (std::set<int>{0, 1, 2, 3}));
  EXPECT_EQ(threads.size(), 4u);
  EXPECT_EQ(zero, std::this_thread::get_id());
}

TEST_P(ThreadPoolTest, EveryItemIsDoneOnceAndRunWaits) {
  ThreadPool pool(3, GetParam());
  for (int round = 0; round < 300; ++round) {
    const int workers = 1 + round % 3;
    std::vector<int> done(1 + round % 40, 0);  // plain ints: ThreadSanitizer sees a missing wait
    std::atomic<size_t> next{0};
    pool.Run(workers, [&](int worker) {
      EXPECT_LT(worker, workers);
      for (size_t i = next++; i < done.size(); i = next++) ++done[i];
    });
    for (int count : done) ASSERT_EQ(count, 1);
  }
}

TEST_P(ThreadPoolTest, NoWorkerNumberIsGivenTwice) {
  ThreadPool pool(4, GetParam());
  for (int round = 0; round < 300; ++round) {
    int calls[4] = {};  // each number is one thread's alone, so plain ints do
    pool.Run(4, [&](int worker) { ++calls[worker]; });
    EXPECT_EQ(calls[0], 1);
    for (int count : calls) ASSERT_LE(count, 1);
  }
}

// Some threads are asleep and others look for work when a number is to be had, in every mixture.
TEST_P(ThreadPoolTest, AllComeAfterAnyPause) {
  ThreadPool pool(4, GetParam());
  for (int round = 0; round < 200; ++round) {
    std::this_thread::sleep_for(std::chrono::microseconds(round));
    std::atomic<int> came{0};
    pool.Run(4, [&](int) {
      ++came;
      while (came < 4) std::this_thread::yield();
    });
    ASSERT_EQ(came, 4);
  }
}

TEST_P(ThreadPoolTest, ANumberIsOneThreads) {
  ThreadPool pool(4, GetParam());
  std::vector<std::set<std::thread::id>> threads(4);
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> came{0};
    const int workers = 2 + round % 3;
    pool.Run(workers, [&](int worker) {
      threads[worker].insert(std::this_thread::get_id());
      ++came;
      while (came < workers) std::this_thread::yield();
    });
  }
  for (const auto& ids : threads) EXPECT_EQ(ids.size(), 1u);
}

// A call that is taken back before its thread has begun, again and again, whether that looks for
// work, sleeps, or is about to wake up, keeps it from none of the calls that follow.
TEST_P(ThreadPoolTest, CallsAreTakenBack) {
  ThreadPool pool(4, GetParam());
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < round % 20; ++i) pool.Run(4, [](int) {});
    std::this_thread::sleep_for(std::chrono::microseconds(round % 7 * 20));
    std::atomic<int> came{0};
    pool.Run(4, [&](int) {
      ++came;
      while (came < 4) std::this_thread::yield();
    });
    ASSERT_EQ(came, 4);
  }
}

TEST_P(ThreadPoolTest, EndsWithoutEverHavingRun) {
  for (int threads = 1; threads <= 4; ++threads) ThreadPool pool(threads, GetParam());
}

}  // namespace
}  // namespace attnd::kernels::cpu
