// The queue's rule, by handing it times: no threads, no clock.
#include "server/scheduler/batch_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/requests.h"

namespace attnd::server {
namespace {

using fakes::Probe;
using fakes::RequestSpec;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class BatchQueueTest : public ::testing::Test {
 protected:
  JobPtr MakeJob(RequestSpec spec) {
    probes_.push_back(std::make_unique<Probe>(spec));
    return probes_.back()->job();
  }

  std::vector<std::string> Ids(const std::vector<JobPtr>& jobs) {
    std::vector<std::string> ids;
    for (const JobPtr& job : jobs) ids.push_back(job->request().request_id);
    return ids;
  }

  std::vector<std::string> TakeIds(BatchQueue& queue, TimePoint now) {
    return Ids(queue.TakeBatch(now));
  }

  const TimePoint t0_{std::chrono::hours(1)};

 private:
  std::vector<std::unique_ptr<Probe>> probes_;
};

TEST_F(BatchQueueTest, OrderIsPriorityThenDeadlineThenArrival) {
  BatchQueue queue({});
  queue.Add(MakeJob({.id = "default", .priority = 0, .arrival = t0_}));
  queue.Add(MakeJob({.id = "low", .priority = 9, .arrival = t0_}));
  queue.Add(MakeJob({.id = "middle", .priority = 5, .arrival = t0_ + milliseconds(1)}));
  queue.Add(MakeJob({.id = "late", .priority = 2, .arrival = t0_, .deadline = t0_ + seconds(9)}));
  queue.Add(MakeJob({.id = "soon", .priority = 2, .arrival = t0_, .deadline = t0_ + seconds(3)}));
  queue.Add(MakeJob({.id = "open", .priority = 2, .arrival = t0_}));
  queue.Add(MakeJob({.id = "high", .priority = 1, .arrival = t0_ + milliseconds(2)}));
  EXPECT_THAT(TakeIds(queue, t0_ + milliseconds(3)),
              ElementsAre("high", "soon", "late", "open", "default", "middle", "low"));
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.bytes(), 0);
}

TEST_F(BatchQueueTest, EqualsGoInOrderOfArrival) {
  BatchQueue queue({});
  for (const char* id : {"a", "b", "c", "d"}) queue.Add(MakeJob({.id = id, .arrival = t0_}));
  EXPECT_THAT(TakeIds(queue, t0_), ElementsAre("a", "b", "c", "d"));
}

// S8: sizes 10, 2, 10 back to back keep their order, in one batch or in three.
TEST_F(BatchQueueTest, S8SizesDoNotChangeTheOrder) {
  for (const int64_t max_batch : {64, 1}) {
    BatchQueue queue({.max_batch_problems = max_batch});
    queue.Add(MakeJob({.id = "first 10", .arrival = t0_, .answer_bytes = 10}));
    queue.Add(MakeJob({.id = "2", .arrival = t0_, .answer_bytes = 2}));
    queue.Add(MakeJob({.id = "second 10", .arrival = t0_, .answer_bytes = 10}));
    std::vector<std::string> order;
    while (!queue.empty()) {
      for (const std::string& id : TakeIds(queue, t0_)) order.push_back(id);
    }
    EXPECT_THAT(order, ElementsAre("first 10", "2", "second 10"));
  }
}

TEST_F(BatchQueueTest, ABatchClosesByCount) {
  BatchQueue queue({.max_batch_problems = 2, .max_batch_delay_us = 1000});
  queue.Add(MakeJob({.id = "a", .arrival = t0_}));
  EXPECT_GT(queue.BatchDue(), t0_);
  queue.Add(MakeJob({.id = "b", .arrival = t0_}));
  EXPECT_LE(queue.BatchDue(), t0_) << "two fill a batch: it does not wait";
  queue.Add(MakeJob({.id = "c", .arrival = t0_}));
  EXPECT_THAT(TakeIds(queue, t0_), ElementsAre("a", "b"));
  EXPECT_GT(queue.BatchDue(), t0_) << "one alone waits for the delay again";
  EXPECT_THAT(TakeIds(queue, t0_), ElementsAre("c"));
}

TEST_F(BatchQueueTest, ABatchClosesByBytesAndPassesNobodyOver) {
  BatchQueue queue({.max_batch_bytes = 100, .max_batch_delay_us = 1000});
  queue.Add(MakeJob({.id = "a", .arrival = t0_, .answer_bytes = 60}));
  EXPECT_GT(queue.BatchDue(), t0_);
  queue.Add(MakeJob({.id = "b", .arrival = t0_, .answer_bytes = 50}));
  EXPECT_LE(queue.BatchDue(), t0_);
  queue.Add(MakeJob({.id = "small", .arrival = t0_, .answer_bytes = 10}));
  EXPECT_THAT(TakeIds(queue, t0_), ElementsAre("a")) << "small fits, but may not pass b";
  EXPECT_THAT(TakeIds(queue, t0_), ElementsAre("b", "small"));
}

TEST_F(BatchQueueTest, ABatchClosesByPredictedTimeAndALongerRequestRunsAlone) {
  BatchQueue queue({.max_batch_delay_us = 1000, .max_slice_us = 400});
  queue.Add(MakeJob({.id = "a", .arrival = t0_, .predicted = microseconds(60)}));
  EXPECT_GT(queue.BatchDue(), t0_);
  queue.Add(MakeJob({.id = "b", .arrival = t0_, .predicted = microseconds(40)}));
  EXPECT_LE(queue.BatchDue(), t0_);
  queue.Add(MakeJob({.id = "c", .arrival = t0_, .predicted = microseconds(1)}));
  queue.Add(MakeJob({.id = "long", .arrival = t0_, .predicted = seconds(1)}));
  queue.Add(MakeJob({.id = "d", .arrival = t0_, .predicted = microseconds(1)}));
  EXPECT_EQ(queue.predicted(), seconds(1) + microseconds(102));
  EXPECT_THAT(TakeIds(queue, t0_), ElementsAre("a", "b"));
  EXPECT_THAT(TakeIds(queue, t0_), ElementsAre("c"));
  EXPECT_THAT(TakeIds(queue, t0_), ElementsAre("long"));
  EXPECT_THAT(TakeIds(queue, t0_), ElementsAre("d"));
  EXPECT_EQ(queue.predicted(), Duration::zero());
}

TEST_F(BatchQueueTest, LongRequestsArePassedOverWhereOnlyShortOnesAreAskedFor) {
  BatchQueue queue({.max_slice_us = 400});
  queue.SetTenants({{"a", 1}, {"b", 1}, {"default", 1}});
  const auto add = [&](const char* id, const char* tenant, Duration predicted) {
    queue.Add(MakeJob({.id = id, .arrival = t0_, .tenant = tenant, .predicted = predicted}));
  };
  add("a long", "a", seconds(1));
  add("a short", "a", microseconds(30));
  add("b long", "b", seconds(1));
  add("b short", "b", microseconds(30));
  EXPECT_THAT(Ids(queue.TakeBatch(t0_, microseconds(100))), ElementsAre("a short", "b short"));
  EXPECT_THAT(Ids(queue.TakeBatch(t0_, microseconds(100))), IsEmpty());
  EXPECT_THAT(TakeIds(queue, t0_), ElementsAre("a long")) << "which have kept their places";
  EXPECT_THAT(TakeIds(queue, t0_), ElementsAre("b long"));
}

TEST_F(BatchQueueTest, BytesAreThoseOfPayloadAndAnswer) {
  BufferPool pool(1 << 20);
  BatchQueue queue({});
  queue.Add(std::make_shared<Job>(fakes::MakeAttention(pool, 4, 8, 0, 0, 0),
                                  [](Job&, const absl::StatusOr<Answer>&, Stage) {}));
  EXPECT_EQ(queue.bytes(), 4 * (4 * 8 * 4) + 4 * 4) << "q, k, v, o and lse";
  queue.TakeAll();
}

// S36: a request larger than the largest batch runs alone.
TEST_F(BatchQueueTest, S36ARequestLargerThanABatchRunsAlone) {
  BatchQueue queue({.max_batch_bytes = 100});
  queue.Add(MakeJob({.id = "a", .arrival = t0_, .answer_bytes = 10}));
  queue.Add(MakeJob({.id = "huge", .arrival = t0_, .answer_bytes = 1000}));
  queue.Add(MakeJob({.id = "b", .arrival = t0_, .answer_bytes = 10}));
  queue.Add(MakeJob({.id = "empty", .arrival = t0_, .answer_bytes = 0}));
  EXPECT_THAT(TakeIds(queue, t0_), ElementsAre("a"));
  EXPECT_THAT(TakeIds(queue, t0_), ElementsAre("huge"));
  EXPECT_THAT(TakeIds(queue, t0_), ElementsAre("b", "empty"));
}

TEST_F(BatchQueueTest, WithoutADelayABatchIsDueAtOnce) {
  BatchQueue queue({});
  EXPECT_EQ(queue.BatchDue(), kNever);
  queue.Add(MakeJob({.arrival = t0_}));
  EXPECT_LE(queue.BatchDue(), t0_);
  queue.TakeAll();
}

// S35: the delay is the oldest request's, whatever arrives, is taken or runs meanwhile.
TEST_F(BatchQueueTest, S35TheDelayRunsFromTheOldestArrival) {
  BatchQueue queue({.max_batch_problems = 4, .max_batch_delay_us = 1000});
  queue.Add(MakeJob({.id = "a", .priority = 9, .arrival = t0_}));
  EXPECT_EQ(queue.BatchDue(), t0_ + microseconds(1000));
  queue.Add(MakeJob({.id = "b", .priority = 1, .arrival = t0_ + microseconds(900)}));
  EXPECT_EQ(queue.BatchDue(), t0_ + microseconds(1000)) << "an arrival does not restart it";
  EXPECT_THAT(TakeIds(queue, t0_ + microseconds(1000)), ElementsAre("b", "a"));
  queue.Add(MakeJob({.id = "c", .arrival = t0_ + microseconds(1100)}));
  EXPECT_EQ(queue.BatchDue(), t0_ + microseconds(2100)) << "nor does a running batch hold it up";
  queue.TakeAll();
}

// S27: never handed out once the deadline has passed.
TEST_F(BatchQueueTest, S27ExpiredRequestsLeaveAtTheirDeadline) {
  BatchQueue queue({});
  queue.Add(MakeJob({.id = "10 s", .arrival = t0_, .deadline = t0_ + seconds(10)}));
  queue.Add(MakeJob({.id = "5 s", .arrival = t0_, .deadline = t0_ + seconds(5)}));
  queue.Add(MakeJob({.id = "open", .arrival = t0_}));
  EXPECT_EQ(queue.EarliestDeadline(), t0_ + seconds(5));
  EXPECT_THAT(queue.TakeExpired(t0_ + seconds(5) - microseconds(1)), IsEmpty());
  EXPECT_THAT(Ids(queue.TakeExpired(t0_ + seconds(5))), ElementsAre("5 s"));
  EXPECT_EQ(queue.EarliestDeadline(), t0_ + seconds(10));
  EXPECT_THAT(Ids(queue.TakeExpired(t0_ + seconds(60))), ElementsAre("10 s"));
  EXPECT_EQ(queue.EarliestDeadline(), kNever);
  EXPECT_THAT(TakeIds(queue, t0_ + seconds(60)), ElementsAre("open"));
}

// S33: a low-priority request under a stream of high ones, one of which arrives and one of which
// is served each 10 ms, so that the queue is never empty.
TEST_F(BatchQueueTest, S33NobodyStarvesUnderAStreamOfHigherPriority) {
  struct Row {
    int priority;
    seconds bound;
  };
  for (const Row& row : {Row{9, seconds(9)}, Row{0, seconds(5)}, Row{2, seconds(2)}}) {
    BatchQueue queue({.max_batch_problems = 1});
    queue.Add(MakeJob({.id = "low", .priority = row.priority, .arrival = t0_}));
    TimePoint now = t0_;
    for (;;) {
      queue.Add(MakeJob({.id = "high", .priority = 1, .arrival = now}));
      if (TakeIds(queue, now)[0] == "low") break;
      now += milliseconds(10);
      ASSERT_LT(now - t0_, seconds(20));
    }
    // Not at once either: the priority counts for something.
    EXPECT_GE(now - t0_, row.bound - seconds(1)) << row.priority;
    EXPECT_LE(now - t0_, row.bound) << row.priority;
    queue.TakeAll();
  }
}

// A request without a deadline under a stream of its own priority with deadlines.
TEST_F(BatchQueueTest, S33NobodyStarvesUnderAStreamOfNearerDeadlines) {
  BatchQueue queue({.max_batch_problems = 1});
  queue.Add(MakeJob({.id = "open", .priority = 1, .arrival = t0_}));
  TimePoint now = t0_;
  for (;;) {
    queue.Add(MakeJob({.id = "near", .priority = 1, .arrival = now, .deadline = now + seconds(1)}));
    if (TakeIds(queue, now)[0] == "open") break;
    now += milliseconds(10);
    ASSERT_LT(now - t0_, seconds(20));
  }
  EXPECT_EQ(now - t0_, seconds(1));
  queue.TakeAll();
}

// Once at the top, only those that arrived before are ahead: the rest of the bound.
TEST_F(BatchQueueTest, S33AgedRequestsGoInOrderOfArrival) {
  BatchQueue queue({.max_batch_problems = 8});
  queue.Add(MakeJob({.id = "1st", .priority = 9, .arrival = t0_}));
  queue.Add(MakeJob({.id = "2nd", .priority = 1, .arrival = t0_ + milliseconds(1)}));
  queue.Add(
      MakeJob({.id = "3rd", .arrival = t0_ + milliseconds(2), .deadline = t0_ + seconds(100)}));
  queue.Add(MakeJob({.id = "fresh", .priority = 1, .arrival = t0_ + seconds(20)}));
  EXPECT_THAT(TakeIds(queue, t0_ + seconds(20)), ElementsAre("1st", "2nd", "3rd", "fresh"));
}

TEST_F(BatchQueueTest, AFullQueueNamesTheLimitAndBothValues) {
  BatchQueue queue({.max_queue_requests = 2, .max_queue_bytes = 100});
  queue.Add(MakeJob({.arrival = t0_, .answer_bytes = 30}));
  const absl::Status bytes = queue.Admit(*MakeJob({.arrival = t0_, .answer_bytes = 71}), t0_);
  EXPECT_EQ(bytes.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(bytes.message()), HasSubstr("max_queue_bytes is 100"));
  EXPECT_THAT(std::string(bytes.message()), HasSubstr("30 bytes wait"));
  EXPECT_THAT(std::string(bytes.message()), HasSubstr("71"));
  EXPECT_TRUE(queue.Admit(*MakeJob({.arrival = t0_, .answer_bytes = 70}), t0_).ok());
  queue.Add(MakeJob({.arrival = t0_, .answer_bytes = 1}));
  const absl::Status requests = queue.Admit(*MakeJob({.arrival = t0_, .answer_bytes = 1}), t0_);
  EXPECT_EQ(requests.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(requests.message()), HasSubstr("2 requests wait"));
  EXPECT_THAT(std::string(requests.message()), HasSubstr("max_queue_requests is 2"));
  queue.TakeAll();
}

TEST_F(BatchQueueTest, PredictedTimeIsBoundedAndIsThePushback) {
  BatchQueue queue({.max_queue_ms = 100});
  const JobPtr vast = MakeJob({.arrival = t0_, .predicted = seconds(1)});
  EXPECT_TRUE(queue.Admit(*vast, t0_).ok()) << "it would wait alone";
  queue.Add(MakeJob({.arrival = t0_, .predicted = milliseconds(50)}));
  const auto job = [&](int64_t predicted_ms) {
    return MakeJob({.arrival = t0_, .predicted = milliseconds(predicted_ms)});
  };
  EXPECT_TRUE(queue.Admit(*job(30), t0_).ok()) << "96 ms, with a fifth for what is not predicted";
  const absl::Status full = queue.Admit(*job(34), t0_);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(
      std::string(full.message()),
      "the queue is full: this request could wait and run for 100800 us, max_queue_ms is 100");
  EXPECT_EQ(RetryPushbackMs(full).value_or(0), 50);
  EXPECT_EQ(RefusalOf(full), Refusal::kQueueTime);
  queue.TakeAll();
}

TEST_F(BatchQueueTest, WhatRunsIsWaitedForToo) {
  BatchQueue queue({.max_batch_problems = 1, .max_queue_ms = 120});
  queue.Add(MakeJob({.arrival = t0_, .predicted = milliseconds(20)}));
  const JobPtr waits = MakeJob({.arrival = t0_, .predicted = milliseconds(50)});
  queue.Add(waits);
  queue.TakeBatch(t0_);
  const auto refusal = [&](int64_t predicted_ms, int64_t now_ms) {
    return RefusalOf(queue.Admit(*MakeJob({.predicted = milliseconds(predicted_ms)}),
                                 t0_ + milliseconds(now_ms)));
  };
  EXPECT_EQ(refusal(30, 0), absl::nullopt) << "20 run, 50 wait";
  EXPECT_EQ(refusal(31, 0), Refusal::kQueueTime);
  EXPECT_EQ(refusal(45, 15), absl::nullopt) << "5 are left to run";
  EXPECT_EQ(refusal(46, 15), Refusal::kQueueTime);
  EXPECT_EQ(refusal(50, 25), absl::nullopt) << "nothing is left to run";
  EXPECT_EQ(refusal(51, 25), Refusal::kQueueTime);
  queue.TakeAll();
}

TEST_F(BatchQueueTest, AShortOneBetweenSlicesOfALongOnePutsOffItsEnd) {
  BatchQueue queue({.max_batch_problems = 1, .max_queue_ms = 120});
  queue.Add(MakeJob({.id = "long", .arrival = t0_, .predicted = milliseconds(50)}));
  queue.TakeBatch(t0_);
  queue.Add(MakeJob({.id = "next", .arrival = t0_, .predicted = milliseconds(15)}));
  queue.Add(MakeJob({.id = "short", .arrival = t0_, .predicted = milliseconds(5)}));
  const TimePoint now = t0_ + milliseconds(10);
  EXPECT_THAT(Ids(queue.TakeBatch(now, milliseconds(10))), ElementsAre("short"));
  const auto refusal = [&](int64_t predicted_ms) {
    return RefusalOf(queue.Admit(*MakeJob({.predicted = milliseconds(predicted_ms)}), now));
  };
  EXPECT_EQ(refusal(40), absl::nullopt) << "45 run, 15 wait";
  EXPECT_EQ(refusal(41), Refusal::kQueueTime);
  queue.TakeAll();
}

// What was predicted to take 10 ms takes 15.
TEST_F(BatchQueueTest, PredictedTimeCountsAsWhatItTakesLately) {
  BatchQueue queue({.max_batch_problems = 1, .max_queue_ms = 100});
  const auto add = [&] { queue.Add(MakeJob({.arrival = t0_, .predicted = milliseconds(10)})); };
  add();
  TimePoint now = t0_;
  for (int i = 0; i < 50; ++i) {
    add();
    queue.TakeBatch(now);
    now += milliseconds(15);
  }
  for (int i = 0; i < 4; ++i) add();  // beside the one that is left: 75 ms
  const auto admit = [&](int64_t predicted_ms) {
    return queue.Admit(*MakeJob({.arrival = now, .predicted = milliseconds(predicted_ms)}), now);
  };
  EXPECT_TRUE(admit(5).ok()) << "82.5 ms, and a fifth";
  const absl::Status full = admit(6);
  EXPECT_EQ(RefusalOf(full), Refusal::kQueueTime);
  EXPECT_EQ(RetryPushbackMs(full).value_or(0), 75);
  // Not while nothing waits, and not beyond reason.
  queue.TakeAll();
  for (int i = 0; i < 200; ++i) {
    add();
    queue.TakeBatch(now);
    now += seconds(1);
  }
  add();
  EXPECT_TRUE(admit(31).ok());
  queue.TakeAll();
}

// Neither a look that takes nothing nor time in which nothing waited is slowness.
TEST_F(BatchQueueTest, IdleTimeAndEmptyLooksDoNotSlowThePace) {
  BatchQueue queue({.max_batch_problems = 1, .max_queue_ms = 100});
  const auto add = [&](Duration predicted) {
    const JobPtr job = MakeJob({.arrival = t0_, .predicted = predicted});
    queue.Add(job);
    return job;
  };
  TimePoint now = t0_;
  add(milliseconds(10));
  const JobPtr gone = add(milliseconds(10));
  queue.TakeBatch(now);
  queue.Remove(*gone);
  now += seconds(9);  // idle
  add(milliseconds(10));
  add(milliseconds(10));
  queue.TakeBatch(now);
  for (int i = 0; i < 1000; ++i) {
    now += microseconds(10);
    EXPECT_TRUE(queue.TakeBatch(now, milliseconds(1)).empty());
  }
  queue.TakeBatch(now);
  add(milliseconds(40));
  const JobPtr next = MakeJob({.arrival = now, .predicted = milliseconds(33)});
  EXPECT_TRUE(queue.Admit(*next, now).ok()) << "behind 10 that run, and 40";
  queue.TakeAll();
}

// A call whose message has not come is taken to be as those that wait, or smaller as it is smaller.
TEST_F(BatchQueueTest, ACallBeforeItsMessageFindsRoomAsTheMeanOfThoseThatWait) {
  BatchQueue queue({.max_queue_ms = 100});
  constexpr int64_t kMessageBytes = 3000;
  EXPECT_TRUE(queue.CheckRoom("", kMessageBytes, t0_).ok());
  for (int i = 0; i < 3; ++i) {
    queue.Add(MakeJob({.arrival = t0_, .answer_bytes = 4000, .predicted = milliseconds(20)}));
  }
  EXPECT_TRUE(queue.CheckRoom("", kMessageBytes, t0_).ok()) << "60 and 20 ms";
  queue.Add(MakeJob({.arrival = t0_, .answer_bytes = 4000, .predicted = milliseconds(20)}));
  EXPECT_EQ(RefusalOf(queue.CheckRoom("", kMessageBytes, t0_)), Refusal::kQueueTime)
      << "80 and 20 ms";
  EXPECT_EQ(RefusalOf(queue.CheckRoom("", int64_t{1} << 30, t0_)), Refusal::kQueueTime);
  EXPECT_TRUE(queue.CheckRoom("", 200, t0_).ok()) << "80 and 2 ms";
  queue.TakeAll();
}

// Otherwise all who come while there is room for one are received, and all but one in vain.
TEST_F(BatchQueueTest, PlacesOfThoseWhoseMessageIsComingAreTaken) {
  BatchQueue queue({.max_queue_ms = 100});
  constexpr int64_t kMessageBytes = 3000;
  for (int i = 0; i < 2; ++i) {
    queue.Add(MakeJob({.arrival = t0_, .answer_bytes = 4000, .predicted = milliseconds(20)}));
  }
  const auto first = queue.HoldPlace("", kMessageBytes, t0_);
  const auto second = queue.HoldPlace("", kMessageBytes, t0_ + milliseconds(300));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(RefusalOf(queue.HoldPlace("", kMessageBytes, t0_).status()), Refusal::kQueueTime);
  const JobPtr here = MakeJob({.arrival = t0_, .predicted = milliseconds(40)});
  EXPECT_TRUE(queue.Admit(*here, t0_).ok()) << "who is here";
  queue.LetGo(*first);
  queue.LetGo(*first);
  EXPECT_TRUE(queue.CheckRoom("", kMessageBytes, t0_).ok());
  EXPECT_TRUE(queue.HoldPlace("", kMessageBytes, t0_ + milliseconds(600)).ok());
  EXPECT_FALSE(queue.HoldPlace("", kMessageBytes, t0_ + milliseconds(1299)).ok());
  EXPECT_TRUE(queue.HoldPlace("", kMessageBytes, t0_ + milliseconds(1300)).ok()) << "too slow";
  queue.SetTenants({{.name = kDefaultTenant}});
  EXPECT_TRUE(queue.CheckRoom("", kMessageBytes, t0_).ok());
  queue.LetGo(*second);
  queue.TakeAll();
}

TEST_F(BatchQueueTest, PlacesAreWithinATenantsShare) {
  BatchQueue queue({.max_queue_requests = 4});
  queue.SetTenants({{.name = kDefaultTenant}, {.name = "a"}});
  ASSERT_TRUE(queue.HoldPlace("a", 1, t0_).ok());
  ASSERT_TRUE(queue.HoldPlace("a", 1, t0_).ok());
  EXPECT_EQ(RefusalOf(queue.HoldPlace("a", 1, t0_).status()), Refusal::kTenantRequests);
  EXPECT_TRUE(queue.HoldPlace(kDefaultTenant, 1, t0_).ok());
}

TEST(Pushback, IsFromOneMillisecondToAMinute) {
  EXPECT_EQ(ToPushbackMs(Duration::zero()), 1);
  EXPECT_EQ(ToPushbackMs(microseconds(2001)), 3);
  EXPECT_EQ(ToPushbackMs(std::chrono::hours(1)), 60'000);
}

TEST_F(BatchQueueTest, WhatLiesInRegionsTakesNoneOfTheQueuesBytesButItsShareOfABatch) {
  BatchQueue queue({.max_queue_bytes = 100, .max_batch_bytes = 1000});
  unsigned char place = 0;
  const auto in_region = [&](const std::string& id) {
    auto request = fakes::MakeRequest({.id = id, .arrival = t0_, .answer_bytes = 600});
    request->output.o_place = &place;
    return std::make_shared<Job>(std::move(request), [](Job&, absl::StatusOr<Answer>, Stage) {});
  };
  for (const char* id : {"a", "b"}) {
    const JobPtr job = in_region(id);
    EXPECT_TRUE(queue.Admit(*job, t0_).ok());
    queue.Add(job);
  }
  EXPECT_EQ(queue.bytes(), 0);
  EXPECT_EQ(queue.TakeBatch(t0_).size(), 1U) << "both are 1200 bytes";
  EXPECT_EQ(queue.TakeBatch(t0_).size(), 1U);
  EXPECT_EQ(queue.bytes(), 0);
}

TEST_F(BatchQueueTest, WhatCanNeverFitIsToldSoWithAPushbackOfMinusOne) {
  BatchQueue queue({.max_queue_bytes = 100});
  const absl::Status never = queue.Admit(*MakeJob({.answer_bytes = 101}), t0_);
  EXPECT_EQ(never.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(never.message()), HasSubstr("101"));
  EXPECT_THAT(std::string(never.message()), HasSubstr("max_queue_bytes 100"));
  EXPECT_EQ(RetryPushbackMs(never).value_or(0), -1);
}

TEST_F(BatchQueueTest, RefusesExpiredAndCancelledJobs) {
  BatchQueue queue({});
  EXPECT_EQ(queue.Admit(*MakeJob({.deadline = t0_}), t0_).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(queue.Admit(*MakeJob({.deadline = t0_ + microseconds(1)}), t0_).ok());
  const JobPtr cancelled = MakeJob({});
  cancelled->RequestCancel();
  EXPECT_EQ(queue.Admit(*cancelled, t0_).code(), absl::StatusCode::kCancelled);
}

TEST_F(BatchQueueTest, RemoveTakesOutExactlyThatOne) {
  BatchQueue queue({});
  const JobPtr a = MakeJob({.id = "a", .arrival = t0_, .deadline = t0_ + seconds(1)});
  const JobPtr b = MakeJob({.id = "b", .arrival = t0_, .deadline = t0_ + seconds(1)});
  queue.Add(a);
  queue.Add(b);
  EXPECT_EQ(queue.Remove(*a), a);
  EXPECT_EQ(queue.Remove(*a), nullptr);
  EXPECT_EQ(queue.requests(), 1);
  EXPECT_EQ(queue.bytes(), 64);
  EXPECT_THAT(TakeIds(queue, t0_), ElementsAre("b"));
  EXPECT_EQ(queue.EarliestDeadline(), kNever);
}

TEST_F(BatchQueueTest, JobsPutBackStandWhereTheyStood) {
  BatchQueue queue({.max_batch_problems = 2});
  for (const char* id : {"a", "b", "c"}) queue.Add(MakeJob({.id = id, .arrival = t0_}));
  const std::vector<JobPtr> taken = queue.TakeBatch(t0_);
  queue.Add(MakeJob({.id = "d", .arrival = t0_}));
  queue.AddBack(taken);
  EXPECT_THAT(TakeIds(queue, t0_), ElementsAre("a", "b"));
  EXPECT_THAT(TakeIds(queue, t0_), ElementsAre("c", "d"));
}

}  // namespace
}  // namespace attnd::server
