// A lane beside a thread that does not come back, and what a thread that is behind leaves to
// others.
#include "server/services/io_lane.h"

#include <grpcpp/alarm.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "kernels/sync.h"
#include "server/services/raw_call.h"

namespace attnd::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class Signal {
 public:
  void Give() {
    MutexLock lock(mutex_);
    given_ = true;
    condition_.NotifyAll();
  }
  void Await() {
    MutexLock lock(mutex_);
    while (!given_) condition_.Wait(mutex_);
  }
  bool is_given() {
    MutexLock lock(mutex_);
    return given_;
  }

 private:
  Mutex mutex_;
  CondVar condition_;
  bool given_ ABSL_GUARDED_BY(mutex_) = false;
};

// Comes to the lane at once.
class Event final : public Completion {
 public:
  explicit Event(std::function<void()> what) : what_(std::move(what)) {}
  void SendTo(IoLane& lane) { alarm_.Set(lane.queue(), gpr_now(GPR_CLOCK_MONOTONIC), NewTag()); }
  void Complete(bool) override { what_(); }

 private:
  const std::function<void()> what_;
  grpc::Alarm alarm_;
};

void WorkFor(milliseconds duration) {
  const auto end = steady_clock::now() + duration;
  while (steady_clock::now() < end) {
  }
}

class IoLaneTest : public testing::Test {
 protected:
  IoLaneTest() {
    grpc::ServerBuilder builder;
    builder.RegisterAsyncGenericService(&service_);
    lane_ = std::make_unique<IoLane>(builder.AddCompletionQueue(), std::chrono::microseconds(0));
    server_ = builder.BuildAndStart();
    lane_->Start();
  }
  // What the test's events use is gone after it.
  void End() {
    server_->Shutdown();
    lane_->Join();
  }

  // What the glances of a tenth of a second see, if it is the same from the second one on.
  bool AllGlances(IoLane::Seen expected) {
    lane_->Glance(steady_clock::now());
    for (int i = 0; i < 5; ++i) {
      std::this_thread::sleep_for(milliseconds(20));
      if (lane_->Glance(steady_clock::now()) != expected) return false;
    }
    return true;
  }

  // Returns with the lane's own thread in `event`, which gives `begun`.
  void KeepBusy(Event& event, Signal& begun) {
    event.SendTo(*lane_);
    begun.Await();
  }

  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<IoLane> lane_;
};

TEST_F(IoLaneTest, AThreadThatWaitsIsNotBusy) {
  EXPECT_TRUE(AllGlances(IoLane::Seen::kIdle));
  End();
}

TEST_F(IoLaneTest, AThreadThatSleepsElsewhereIsNotBusy) {
  Signal begun, enough;
  Event sleeps([&] {
    begun.Give();
    enough.Await();
  });
  KeepBusy(sleeps, begun);
  EXPECT_TRUE(AllGlances(IoLane::Seen::kIdle));
  enough.Give();
  End();
}

TEST_F(IoLaneTest, WhatComesIsServed) {
  Signal served;
  Event event([&] { served.Give(); });
  event.SendTo(*lane_);
  served.Await();
  EXPECT_EQ(lane_->Glance(steady_clock::now()), IoLane::Seen::kServed);
  End();
}

TEST_F(IoLaneTest, SomebodyStandsInUntilTheThreadIsBack) {
  Signal begun, served;
  std::atomic<bool> back{false};
  Event works([&] {
    begun.Give();
    while (!served.is_given()) {
    }
    back = true;
  });
  KeepBusy(works, begun);
  EXPECT_TRUE(AllGlances(IoLane::Seen::kLeftAlone));

  std::thread::id by;
  Event waits([&] {
    by = std::this_thread::get_id();
    EXPECT_FALSE(back);
    served.Give();
  });
  waits.SendTo(*lane_);
  while (!served.is_given()) lane_->StandIn();
  EXPECT_EQ(by, std::this_thread::get_id());
  // The thread comes back with the next event at the latest.
  Signal next;
  Event again([&] { next.Give(); });
  again.SendTo(*lane_);
  next.Await();
  EXPECT_TRUE(back);
  End();
}

// It has to hear of connections that came meanwhile.
TEST_F(IoLaneTest, TheThreadIsWokenWhenNobodyStandsInAnyMore) {
  const uint64_t before = lane_->own_turns();
  lane_->StandIn();
  const auto end = steady_clock::now() + std::chrono::seconds(10);
  while (lane_->own_turns() == before && steady_clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_GT(lane_->own_turns(), before);
  End();
}

TEST_F(IoLaneTest, AThreadThatIsBehindHasNoTime) {
  EXPECT_TRUE(IoLane::HasTime()) << "no lane's thread";
  bool at_first = false, after_work = true, in_the_next = true;
  Signal begun, both_wait, done;
  Event first([&] {
    at_first = IoLane::HasTime();
    begun.Give();
    both_wait.Await();
    WorkFor(milliseconds(2));
    after_work = IoLane::HasTime();
  });
  Event second([&] {
    in_the_next = IoLane::HasTime();
    done.Give();
  });
  first.SendTo(*lane_);
  begun.Await();
  second.SendTo(*lane_);
  std::this_thread::sleep_for(milliseconds(20));  // until it is in the queue
  both_wait.Give();
  done.Await();
  EXPECT_TRUE(at_first);
  EXPECT_FALSE(after_work);
  EXPECT_FALSE(in_the_next);

  // Once it has waited for something it has time again.
  std::this_thread::sleep_for(milliseconds(20));
  bool later = false;
  Signal seen;
  Event third([&] {
    later = IoLane::HasTime();
    seen.Give();
  });
  third.SendTo(*lane_);
  seen.Await();
  EXPECT_TRUE(later);
  End();
}

}  // namespace
}  // namespace attnd::server
