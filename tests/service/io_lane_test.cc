// A lane beside a thread that does not come back, and what a thread that is behind leaves to
// others.
#include "server/services/io_lane.h"

#include <gmock/gmock.h>
#include <grpcpp/alarm.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/services/raw_call.h"
#include "server/services/request_steps.h"
#include "tests/fakes/gate.h"

namespace attnd::server {
namespace {

using fakes::Gate;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

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

  // Returns with the lane's own thread in `event`, which opens `begun`.
  void KeepBusy(Event& event, Gate& begun) {
    event.SendTo(*lane_);
    begun.Wait();
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
  Gate begun, enough;
  Event sleeps([&] {
    begun.Open();
    enough.Wait();
  });
  KeepBusy(sleeps, begun);
  EXPECT_TRUE(AllGlances(IoLane::Seen::kIdle));
  enough.Open();
  End();
}

TEST_F(IoLaneTest, WhatComesIsServed) {
  Gate served;
  Event event([&] { served.Open(); });
  event.SendTo(*lane_);
  served.Wait();
  EXPECT_EQ(lane_->Glance(steady_clock::now()), IoLane::Seen::kServed);
  End();
}

TEST_F(IoLaneTest, SomebodyStandsInUntilTheThreadIsBack) {
  Gate begun, served;
  std::atomic<bool> back{false};
  Event works([&] {
    begun.Open();
    while (!served.is_open()) {
    }
    back = true;
  });
  KeepBusy(works, begun);
  EXPECT_TRUE(AllGlances(IoLane::Seen::kLeftAlone));

  std::thread::id by;
  Event waits([&] {
    by = std::this_thread::get_id();
    EXPECT_FALSE(back);
    served.Open();
  });
  waits.SendTo(*lane_);
  while (!served.is_open()) lane_->StandIn();
  EXPECT_EQ(by, std::this_thread::get_id());
  // The thread comes back with the next event at the latest.
  Gate next;
  Event again([&] { next.Open(); });
  again.SendTo(*lane_);
  next.Wait();
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
  EXPECT_FALSE(IsSentHere(kInlineBytes)) << "no lane's thread";
  EXPECT_TRUE(IsSentHere(kSmallAnswerBytes));
  EXPECT_FALSE(IoLane::IsServing());
  bool sends_at_first = false, sends_after_work = true;
  Duration computes_at_first{}, computes_after_work{};
  bool at_first = false, after_work = true, in_the_next = true;
  Gate begun, both_wait, done;
  Event first([&] {
    at_first = IoLane::HasTime();
    sends_at_first = IsSentHere(kInlineBytes);
    computes_at_first = MostComputedHere();
    begun.Open();
    both_wait.Wait();
    WorkFor(milliseconds(2));
    after_work = IoLane::HasTime();
    sends_after_work = IsSentHere(kInlineBytes);
    computes_after_work = MostComputedHere();
  });
  Event second([&] {
    in_the_next = IoLane::HasTime();
    done.Open();
  });
  first.SendTo(*lane_);
  begun.Wait();
  second.SendTo(*lane_);
  std::this_thread::sleep_for(milliseconds(20));  // until it is in the queue
  both_wait.Open();
  done.Wait();
  EXPECT_TRUE(at_first);
  EXPECT_FALSE(after_work);
  EXPECT_TRUE(sends_at_first);
  EXPECT_FALSE(sends_after_work);
  EXPECT_LT(computes_after_work, computes_at_first);
  EXPECT_FALSE(in_the_next);

  // Once it has waited for something it has time again.
  std::this_thread::sleep_for(milliseconds(20));
  bool later = false;
  Gate seen;
  Event third([&] {
    later = IoLane::HasTime();
    seen.Open();
  });
  third.SendTo(*lane_);
  seen.Wait();
  EXPECT_TRUE(later);
  End();
}

TEST_F(IoLaneTest, OnlyItsOwnThreadPutsOffAndOnlyWhileAMessageIsExpected) {
  lane_->ExpectMessage();
  EXPECT_FALSE(lane_->PutOff([] { ADD_FAILURE(); }));
  lane_->ExpectNoMore();
  bool kept = true;
  Gate done;
  Event event([&] {
    kept = lane_->PutOff([] { ADD_FAILURE(); });
    done.Open();
  });
  event.SendTo(*lane_);
  done.Wait();
  End();
  EXPECT_FALSE(kept);
}

// Answers that are put off go out together, after what is at hand. A late thread sends the first
// one alone, as none is to wait for long: so one attempt of many has to succeed.
TEST_F(IoLaneTest, WhatIsPutOffIsSentOnceWhatIsAtHandIsDone) {
  const std::vector<std::string> together = {"second", "first sent", "second sent"};
  const std::vector<std::string> alone = {"first sent", "second", "second sent"};
  std::vector<std::string> order;
  lane_->ExpectMessage();
  for (int attempt = 0; attempt < 50 && order != together; ++attempt) {
    order.clear();
    Gate begun, both_wait, sent;
    Event first([&] {
      begun.Open();
      both_wait.Wait();
      EXPECT_TRUE(lane_->PutOff([&] { order.emplace_back("first sent"); }));
    });
    Event second([&] {
      order.emplace_back("second");
      EXPECT_TRUE(lane_->PutOff([&] {
        order.emplace_back("second sent");
        sent.Open();
      }));
    });
    KeepBusy(first, begun);
    second.SendTo(*lane_);
    std::this_thread::sleep_for(milliseconds(20));  // until it is in the queue
    both_wait.Open();
    sent.Wait();
    ASSERT_THAT(order, testing::AnyOf(together, alone));
  }
  EXPECT_EQ(order, together);
  End();
}

TEST_F(IoLaneTest, WhatIsPutOffDoesNotWaitForWhatDoesNotCome) {
  Gate sent;
  lane_->ExpectMessage();
  Event event([&] { EXPECT_TRUE(lane_->PutOff([&] { sent.Open(); })); });
  event.SendTo(*lane_);
  sent.Wait();
  End();
}

TEST_F(IoLaneTest, WhoStandsInSendsWhatTheThreadHasPutOff) {
  Gate begun, sent;
  lane_->ExpectMessage();
  std::thread::id by;
  Event stuck([&] {
    EXPECT_TRUE(lane_->PutOff([&] {
      by = std::this_thread::get_id();
      sent.Open();
    }));
    begun.Open();
    sent.Wait();
  });
  KeepBusy(stuck, begun);
  lane_->StandIn();
  EXPECT_TRUE(sent.is_open());
  EXPECT_EQ(by, std::this_thread::get_id());
  EXPECT_EQ(IoLane::OfThisThread(), nullptr);
  End();
}

}  // namespace
}  // namespace attnd::server
