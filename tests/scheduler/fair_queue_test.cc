// The shares of tenants, and the bounds that batch_queue.h states, by handing the queue times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/scheduler/batch_queue.h"
#include "tests/fakes/requests.h"

namespace attnd::server {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FairQueueTest : public ::testing::Test {
 protected:
  JobPtr MakeJob(const std::string& tenant, Duration predicted, int64_t bytes = 64) {
    probes_.push_back(std::make_unique<fakes::Probe>(
        fakes::RequestSpec{.id = tenant, .arrival = t0_, .answer_bytes = bytes, .tenant = tenant}));
    probes_.back()->job()->SetPredicted(predicted);
    return probes_.back()->job();
  }

  void Flood(BatchQueue& queue, const std::string& tenant, int requests, Duration predicted) {
    for (int i = 0; i < requests; ++i) queue.Add(MakeJob(tenant, predicted));
  }

  // Device time by tenant of this many requests more, one a batch.
  std::map<std::string, Duration> Take(BatchQueue& queue, int requests) {
    std::map<std::string, Duration> taken;
    for (int i = 0; i < requests; ++i) {
      for (const JobPtr& job : queue.TakeBatch(t0_)) {
        taken[job->request().request_id] += job->predicted();
      }
    }
    return taken;
  }

  const TimePoint t0_{std::chrono::hours(1)};

 private:
  std::vector<std::unique_ptr<fakes::Probe>> probes_;
};

TEST_F(FairQueueTest, DeviceTimeIsSharedByWeight) {
  BatchQueue queue({.max_batch_problems = 1});
  queue.SetTenants({{"a", 3}, {"b", 1}, {"default", 1}});
  Flood(queue, "a", 400, milliseconds(1));
  Flood(queue, "b", 400, milliseconds(1));
  const auto taken = Take(queue, 200);
  EXPECT_NEAR(static_cast<double>(ToMicroseconds(taken.at("a"))), 150'000, 1000);
  EXPECT_NEAR(static_cast<double>(ToMicroseconds(taken.at("b"))), 50'000, 1000);
  const std::vector<TenantFacts> facts = queue.tenants();
  EXPECT_EQ(facts[0].name, "a");
  EXPECT_EQ(facts[0].handed_out, taken.at("a"));
  EXPECT_EQ(facts[1].requests + facts[0].requests, 600);
  queue.TakeAll();
}

// The same with requests of all sizes: to within the largest one.
TEST_F(FairQueueTest, WhatCountsIsDeviceTimeNotRequests) {
  BatchQueue queue({.max_batch_problems = 1});
  queue.SetTenants({{"large", 1}, {"small", 1}, {"default", 1}});
  std::mt19937 random(3);
  for (int i = 0; i < 500; ++i) {
    queue.Add(MakeJob("large", microseconds(20'000 + random() % 20'000)));
    for (int j = 0; j < 50; ++j) queue.Add(MakeJob("small", microseconds(100 + random() % 900)));
  }
  const auto taken = Take(queue, 10'000);
  EXPECT_LE(std::chrono::abs(taken.at("large") - taken.at("small")), milliseconds(40));
  EXPECT_GT(taken.at("small"), milliseconds(1000));
  queue.TakeAll();
}

TEST_F(FairQueueTest, EqualSharesTakeTurns) {
  BatchQueue queue({.max_batch_problems = 6, .max_slice_us = 0});
  queue.SetTenants({{"a", 1}, {"b", 1}, {"default", 1}});
  Flood(queue, "b", 9, milliseconds(1));
  Flood(queue, "a", 3, milliseconds(1));
  std::vector<std::string> order;
  for (const JobPtr& job : queue.TakeBatch(t0_)) order.push_back(job->request().request_id);
  EXPECT_THAT(order, ElementsAre("a", "b", "a", "b", "a", "b"));
  queue.TakeAll();
}

// A light tenant that calls again and again beside a flood that is never worked off, on a device
// that takes what is predicted, one batch at a time: it waits half of max_slice_us longer than
// alone, and never more.
TEST_F(FairQueueTest, ALightTenantWaitsForASliceBesideAFlood) {
  constexpr microseconds kSlice{20'000};
  constexpr microseconds kOwn{700};
  BatchQueue queue({.max_queue_requests = 1'000'000, .max_slice_us = kSlice.count()});
  queue.SetTenants({{"light", 1}, {"flood", 1}, {"default", 1}});
  std::mt19937 random(5);
  TimePoint now = t0_;
  TimePoint light_at = t0_;
  bool light_waits = false;
  Duration worst{};
  for (int batches = 0; batches < 5000; ++batches) {
    while (queue.requests() < 200) queue.Add(MakeJob("flood", microseconds(1 + random() % 5'000)));
    const std::vector<JobPtr> batch = queue.TakeBatch(now);
    Duration takes{};
    bool has_light = false;
    for (const JobPtr& job : batch) {
      takes += job->predicted();
      has_light |= job->request().request_id == "light";
    }
    EXPECT_EQ(has_light, light_waits) << "it is in the next batch, each time";
    EXPECT_LE(takes, kSlice / 4);
    now += takes;
    if (has_light) {
      worst = std::max(worst, now - light_at);
      light_waits = false;
      light_at = now + microseconds(random() % 30'000);
    }
    if (!light_waits && light_at <= now) {
      queue.Add(MakeJob("light", kOwn));
      light_waits = true;
    }
  }
  EXPECT_LE(worst, kOwn + kSlice / 2);
  EXPECT_GT(worst, kSlice / 4) << "the flood was one";
  queue.TakeAll();
}

// The least of 31 beside 30 that never stop gets its share, at a steady pace.
TEST_F(FairQueueTest, NobodyStarvesBesideManyAndHeavierTenants) {
  std::vector<TenantSpec> tenants = {{"least", 1}, {"default", 1}};
  for (int i = 0; i < 30; ++i) tenants.push_back({"heavy" + std::to_string(i), 10});
  BatchQueue queue({.max_queue_requests = 1'000'000, .max_batch_problems = 1});
  queue.SetTenants(tenants);
  for (const TenantSpec& tenant : tenants) {
    if (tenant.name != "default") Flood(queue, tenant.name, 700, milliseconds(1));
  }
  int since = 0;
  int served = 0;
  for (int i = 0; i < 6000; ++i) {
    ++since;
    if (queue.TakeBatch(t0_)[0]->request().request_id != "least") continue;
    // 300 of theirs for one of its own, and one of each more for rounding.
    EXPECT_LE(since, 301 + 30);
    since = 0;
    ++served;
  }
  EXPECT_GE(served, 6000 / 301 - 1);
  queue.TakeAll();
}

TEST_F(FairQueueTest, NothingIsSavedUpWhileIdle) {
  BatchQueue queue({.max_queue_requests = 10'000, .max_batch_problems = 1});
  queue.SetTenants({{"a", 1}, {"b", 1}, {"default", 1}});
  Flood(queue, "a", 2000, milliseconds(1));
  Take(queue, 1000);
  Flood(queue, "b", 2000, milliseconds(1));
  const auto taken = Take(queue, 200);
  EXPECT_LE(std::chrono::abs(taken.at("a") - taken.at("b")), milliseconds(2));
  queue.TakeAll();
}

TEST_F(FairQueueTest, WhatComesBackIsNotCharged) {
  BatchQueue queue({.max_batch_problems = 1});
  queue.SetTenants({{"a", 1}, {"b", 1}, {"default", 1}});
  Flood(queue, "a", 100, milliseconds(1));
  Flood(queue, "b", 100, milliseconds(1));
  for (int i = 0; i < 30; ++i) {
    const std::vector<JobPtr> taken = queue.TakeBatch(t0_);
    EXPECT_EQ(taken[0]->request().request_id, "a") << "its turn, until it is really taken";
    queue.AddBack(taken);
  }
  const auto taken = Take(queue, 100);
  EXPECT_LE(std::chrono::abs(taken.at("a") - taken.at("b")), milliseconds(1));
  EXPECT_EQ(queue.tenants()[0].handed_out, taken.at("a"));
  queue.TakeAll();
}

TEST_F(FairQueueTest, PriorityCountsWithinATenantOnly) {
  BatchQueue queue({.max_batch_problems = 2});
  queue.SetTenants({{"a", 1}, {"b", 1}, {"default", 1}});
  std::vector<std::unique_ptr<fakes::Probe>> probes;
  const auto add = [&](const char* id, const char* tenant, int priority) {
    probes.push_back(std::make_unique<fakes::Probe>(
        fakes::RequestSpec{.id = id, .priority = priority, .arrival = t0_, .tenant = tenant}));
    probes.back()->job()->SetPredicted(milliseconds(1));
    queue.Add(probes.back()->job());
  };
  add("a low", "a", 9);
  add("a high", "a", 1);
  add("b low", "b", 9);
  std::vector<std::string> order;
  for (const JobPtr& job : queue.TakeBatch(t0_)) order.push_back(job->request().request_id);
  EXPECT_THAT(order, ElementsAre("a high", "b low"));
  queue.TakeAll();
}

// Callers that nobody named share one tenant, whatever they call themselves.
TEST_F(FairQueueTest, UnknownCallersShareTheDefaultTenant) {
  BatchQueue queue({.max_queue_requests = 100'000, .max_batch_problems = 1});
  queue.SetTenants({{"known", 1}, {"default", 1}});
  Flood(queue, "known", 1000, milliseconds(1));
  for (int i = 0; i < 1000; ++i) {
    queue.Add(MakeJob("hostile" + std::to_string(i), milliseconds(1)));
  }
  EXPECT_EQ(queue.tenants().size(), 2u);
  EXPECT_NEAR(static_cast<double>(ToMicroseconds(Take(queue, 200).at("known"))), 100'000, 1000);
  queue.TakeAll();
}

TEST_F(FairQueueTest, ATenantHasItsShareOfTheQueue) {
  BatchQueue queue({.max_queue_requests = 8, .max_queue_bytes = 8000, .max_queue_ms = 80});
  queue.SetTenants({{"a", 2}, {"b", 1}, {"default", 1}});
  const auto refusal = [&](const char* tenant, Duration predicted, int64_t bytes) {
    return queue.Admit(*MakeJob(tenant, predicted, bytes), t0_);
  };
  EXPECT_TRUE(refusal("b", milliseconds(70), 7000).ok()) << "alone in its share";
  queue.Add(MakeJob("b", milliseconds(15), 500));
  const absl::Status bytes = refusal("b", milliseconds(1), 1600);
  EXPECT_EQ(RefusalOf(bytes), Refusal::kTenantBytes);
  EXPECT_EQ(std::string(bytes.message()),
            "tenant b has its share of the queue: 500 bytes wait and this request has 1600, its "
            "bound is 2000");
  const absl::Status time = refusal("b", milliseconds(6), 100);
  EXPECT_EQ(RefusalOf(time), Refusal::kTenantTime);
  EXPECT_EQ(RetryPushbackMs(time).value_or(0), 15) << "nobody else waits";
  queue.Add(MakeJob("b", milliseconds(1), 100));
  const absl::Status requests = refusal("b", milliseconds(1), 100);
  EXPECT_EQ(RefusalOf(requests), Refusal::kTenantRequests);
  EXPECT_EQ(requests.code(), absl::StatusCode::kResourceExhausted);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(refusal("a", milliseconds(1), 100).ok()) << "b's flood is b's";
    queue.Add(MakeJob("a", milliseconds(1), 100));
  }
  EXPECT_EQ(RefusalOf(refusal("a", milliseconds(1), 100)), Refusal::kTenantRequests);
  EXPECT_TRUE(refusal("anybody", milliseconds(1), 100).ok());
  // Of the device's next milliseconds b has a third beside a, until a's have run.
  EXPECT_EQ(RetryPushbackMs(refusal("b", milliseconds(1), 100)).value_or(0), 20);
  queue.TakeAll();
}

TEST_F(FairQueueTest, OwnBoundsGoBeforeTheShare) {
  BatchQueue queue({.max_queue_requests = 100});
  queue.SetTenants({{.name = "a", .max_queue_requests = 1}, {.name = "default"}});
  queue.Add(MakeJob("a", milliseconds(1)));
  EXPECT_THAT(std::string(queue.Admit(*MakeJob("a", milliseconds(1)), t0_).message()),
              HasSubstr("its bound is 1"));
  queue.TakeAll();
}

TEST_F(FairQueueTest, NewTenantsDropNothing) {
  BatchQueue queue({.max_queue_requests = 10'000, .max_batch_problems = 1});
  queue.SetTenants({{"stays", 1}, {"goes", 1}, {"default", 1}});
  Flood(queue, "stays", 500, milliseconds(1));
  Flood(queue, "goes", 100, milliseconds(1));
  Flood(queue, "comes", 100, milliseconds(1));
  Take(queue, 30);
  queue.SetTenants({{"stays", 9}, {"comes", 1}, {"default", 1}});
  EXPECT_EQ(queue.requests(), 670);
  EXPECT_EQ(queue.tenants().size(), 3u);
  Flood(queue, "comes", 100, milliseconds(1));
  const auto taken = Take(queue, 110);
  EXPECT_NEAR(static_cast<double>(ToMicroseconds(taken.at("stays"))), 90'000, 3000);
  int64_t waiting = 0;
  for (const TenantFacts& tenant : queue.tenants()) waiting += tenant.requests;
  EXPECT_EQ(waiting, queue.requests());
  EXPECT_EQ(static_cast<int64_t>(queue.TakeAll().size()), 660);
  EXPECT_EQ(queue.predicted(), Duration::zero());
  EXPECT_EQ(queue.bytes(), 0);
}

}  // namespace
}  // namespace attnd::server
