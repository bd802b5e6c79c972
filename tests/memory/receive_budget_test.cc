#include "server/memory/receive_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/sync.h"

namespace attnd::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Acquires, and keeps the permits in the order in which they were granted.
class Callers {
 public:
  explicit Callers(ReceiveBudget* budget) : budget_(budget) {}

  absl::Status Acquire(std::string name, int64_t size_bytes) {
    return budget_->Acquire(
        size_bytes,
        [this, name](ReceivePermit permit) {
          granted.push_back(name);
          permits.push_back(std::move(permit));
        },
        &last_ticket);
  }

  // Giving back may grant again, which adds to `permits`.
  void GiveBackAll() {
    std::vector<ReceivePermit> given_back;
    given_back.swap(permits);
  }

  std::vector<std::string> granted;
  std::vector<ReceivePermit> permits;
  uint64_t last_ticket = 0;

 private:
  ReceiveBudget* const budget_;
};

TEST(ReceiveBudget, GrantsAtOnceWhileThereIsRoom) {
  ReceiveBudget budget(100, 10);
  Callers callers(&budget);
  ASSERT_TRUE(callers.Acquire("a", 60).ok());
  EXPECT_EQ(callers.last_ticket, 0u);
  ASSERT_TRUE(callers.Acquire("b", 40).ok());
  EXPECT_THAT(callers.granted, ElementsAre("a", "b"));
  EXPECT_EQ(budget.used_bytes(), 100);
  callers.GiveBackAll();
  EXPECT_EQ(budget.used_bytes(), 0);
}

TEST(ReceiveBudget, FirstComeFirstServedThoughALaterOneWouldFit) {
  ReceiveBudget budget(100, 10);
  Callers callers(&budget);
  ASSERT_TRUE(callers.Acquire("a", 60).ok());
  ASSERT_TRUE(callers.Acquire("large", 80).ok());
  ASSERT_TRUE(callers.Acquire("small", 10).ok());
  EXPECT_THAT(callers.granted, ElementsAre("a")) << "small must not pass large";
  EXPECT_EQ(budget.waiting(), 2);
  { const ReceivePermit gone = std::move(callers.permits[0]); }
  EXPECT_THAT(callers.granted, ElementsAre("a", "large", "small"));
  EXPECT_EQ(budget.used_bytes(), 90);
  EXPECT_EQ(budget.waiting(), 0);
}

TEST(ReceiveBudget, RefusesWhatCanNeverFitAndTooManyWaiting) {
  ReceiveBudget budget(100, 1);
  Callers callers(&budget);
  for (const int64_t size : {int64_t{-1}, int64_t{101}, INT64_MAX}) {
    const absl::Status never = callers.Acquire("never", size);
    EXPECT_EQ(never.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(never.message()), HasSubstr(std::to_string(size)));
    EXPECT_THAT(std::string(never.message()), HasSubstr("100"));
  }
  ASSERT_TRUE(callers.Acquire("a", 100).ok());
  ASSERT_TRUE(callers.Acquire("b", 1).ok());
  const absl::Status full = callers.Acquire("c", 1);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(callers.granted, ElementsAre("a"));
  callers.GiveBackAll();
  EXPECT_THAT(callers.granted, ElementsAre("a", "b")) << "c was refused, so it is never called";
}

TEST(ReceiveBudget, ShrinkingGivesTheDifferenceBack) {
  ReceiveBudget budget(100, 10);
  Callers callers(&budget);
  callers.permits.reserve(4);
  ASSERT_TRUE(callers.Acquire("a", 100).ok());
  ASSERT_TRUE(callers.Acquire("b", 30).ok());
  callers.permits[0].ShrinkTo(71);
  EXPECT_THAT(callers.granted, ElementsAre("a"));
  callers.permits[0].ShrinkTo(70);
  EXPECT_THAT(callers.granted, ElementsAre("a", "b"));
  EXPECT_EQ(callers.permits[0].size_bytes(), 70);
  EXPECT_EQ(budget.used_bytes(), 100);
}

TEST(ReceiveBudget, CancelTakesAWaitingCallOutOnceAndLetsThoseBehindItIn) {
  ReceiveBudget budget(100, 10);
  Callers callers(&budget);
  ASSERT_TRUE(callers.Acquire("a", 60).ok());
  EXPECT_FALSE(budget.Cancel(callers.last_ticket)) << "granted already";
  ASSERT_TRUE(callers.Acquire("large", 80).ok());
  const uint64_t large = callers.last_ticket;
  ASSERT_TRUE(callers.Acquire("small", 10).ok());
  EXPECT_TRUE(budget.Cancel(large));
  EXPECT_FALSE(budget.Cancel(large));
  EXPECT_FALSE(budget.Cancel(12345));
  EXPECT_THAT(callers.granted, ElementsAre("a", "small"));
  callers.GiveBackAll();
  EXPECT_THAT(callers.granted, ElementsAre("a", "small"));
  EXPECT_EQ(budget.used_bytes(), 0);
  EXPECT_EQ(budget.waiting(), 0);
}

TEST(ReceiveBudget, AMovedPermitIsGivenBackOnce) {
  ReceiveBudget budget(100, 10);
  std::optional<ReceivePermit> kept;
  uint64_t ticket = 0;
  ASSERT_TRUE(budget
                  .Acquire(
                      50, [&](ReceivePermit permit) { kept = std::move(permit); }, &ticket)
                  .ok());
  ReceivePermit second = *std::move(kept);
  kept.reset();
  EXPECT_EQ(budget.used_bytes(), 50);
  second = ReceivePermit();
  EXPECT_EQ(budget.used_bytes(), 0);
}

TEST(ReceiveBudget, ThousandsThatGiveBackAtOnceDoNotRecurse) {
  constexpr int kCallers = 100000;
  ReceiveBudget budget(1, kCallers);
  std::optional<ReceivePermit> first;
  uint64_t ticket = 0;
  int granted = 0;
  ASSERT_TRUE(budget
                  .Acquire(
                      1, [&](ReceivePermit permit) { first = std::move(permit); }, &ticket)
                  .ok());
  for (int i = 0; i < kCallers; ++i) {
    ASSERT_TRUE(budget
                    .Acquire(
                        1, [&](ReceivePermit) { ++granted; }, &ticket)
                    .ok());
  }
  first.reset();
  EXPECT_EQ(granted, kCallers);
}

TEST(ReceiveBudget, ACallbackMayAcquireAgain) {
  ReceiveBudget budget(10, 4);
  Callers callers(&budget);
  uint64_t ticket = 0;
  ASSERT_TRUE(callers.Acquire("a", 10).ok());
  ASSERT_TRUE(
      budget
          .Acquire(
              5, [&](ReceivePermit) { EXPECT_TRUE(callers.Acquire("inner", 5).ok()); }, &ticket)
          .ok());
  callers.GiveBackAll();
  EXPECT_THAT(callers.granted, ElementsAre("a", "inner"));
}

TEST(ReceiveBudget, WaitingCallsAreDroppedWithTheBudget) {
  bool granted = false;
  auto held = std::make_shared<int>(1);
  ReceivePermit permit;
  {
    ReceiveBudget budget(10, 4);
    uint64_t ticket = 0;
    ASSERT_TRUE(budget
                    .Acquire(
                        10, [&](ReceivePermit p) { permit = std::move(p); }, &ticket)
                    .ok());
    ASSERT_TRUE(budget
                    .Acquire(
                        1, [&granted, held](ReceivePermit) { granted = true; }, &ticket)
                    .ok());
  }
  EXPECT_EQ(held.use_count(), 1) << "what the callback held is gone";
  permit = ReceivePermit();
  EXPECT_FALSE(granted);
}

// Every call ends in exactly one of: granted, or cancelled with true.
TEST(ReceiveBudget, CancelAndGrantRaceToOneEnd) {
  constexpr int kThreads = 4;
  constexpr int kCalls = 3000;
  constexpr int64_t kBudgetBytes = 100;
  ReceiveBudget budget(kBudgetBytes, 1 << 20);
  std::atomic<int64_t> held_bytes{0};
  std::atomic<int> granted{0};
  std::atomic<int> cancelled{0};
  std::atomic<int> both{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      for (int i = 0; i < kCalls; ++i) {
        auto was_granted = std::make_shared<std::atomic<int>>(0);
        const int64_t size_bytes = 1 + static_cast<int64_t>(random() % kBudgetBytes);
        uint64_t ticket = 0;
        const absl::Status status = budget.Acquire(
            size_bytes,
            [&, was_granted](ReceivePermit permit) {
              EXPECT_LE(held_bytes += permit.size_bytes(), kBudgetBytes);
              ++granted;
              ++*was_granted;
              held_bytes -= permit.size_bytes();
            },
            &ticket);
        ASSERT_TRUE(status.ok());
        if (ticket != 0 && budget.Cancel(ticket)) {
          ++cancelled;
          if (*was_granted != 0) ++both;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(granted + cancelled, kThreads * kCalls);
  EXPECT_EQ(both, 0);
  EXPECT_EQ(budget.used_bytes(), 0);
  EXPECT_EQ(budget.waiting(), 0);
}

}  // namespace
}  // namespace attnd::server
