// The service's small parts on their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "server/listen_address.h"
#include "server/log.h"
#include "server/options.h"
#include "server/services/call_facts.h"
#include "server/services/call_gate.h"
#include "server/services/deadline_watch.h"
#include "server/services/message_bytes.h"
#include "server/services/worker_pool.h"

namespace attnd::server {
namespace {

using ::testing::HasSubstr;

TEST(QuoteForLogTest, NoValueForgesALineOrAKey) {
  EXPECT_EQ(QuoteForLog("plain-1.5/x"), "plain-1.5/x");
  EXPECT_EQ(QuoteForLog(""), "\"\"");
  EXPECT_EQ(QuoteForLog("a b"), "\"a b\"");
  EXPECT_EQ(QuoteForLog("a=b"), "\"a=b\"");
  EXPECT_EQ(QuoteForLog("a\nlevel=info"), "\"a\\nlevel=info\"");
  EXPECT_EQ(QuoteForLog("\"\\"), "\"\\\"\\\\\"");
  EXPECT_EQ(QuoteForLog("\x1b[31m\xff").find('\x1b'), std::string::npos);
  EXPECT_FALSE(SetUpLog("loud").ok());
}

TEST(ListenAddressTest, ReadsWhatPeopleWrite) {
  const auto v4 = ParseListenAddress("127.0.0.1:7070");
  ASSERT_TRUE(v4.ok());
  EXPECT_TRUE(v4->is_loopback);
  EXPECT_EQ(v4->port, 7070);
  EXPECT_EQ(v4->ToString(), "127.0.0.1:7070");
  const auto v6 = ParseListenAddress("[::1]:0");
  ASSERT_TRUE(v6.ok());
  EXPECT_TRUE(v6->is_loopback);
  EXPECT_EQ(v6->ToString(), "[::1]:0");
  EXPECT_TRUE(ParseListenAddress("localhost:1")->is_loopback);
  EXPECT_TRUE(ParseListenAddress("127.8.9.10:1")->is_loopback);
  EXPECT_FALSE(ParseListenAddress("0.0.0.0:1")->is_loopback);
  EXPECT_FALSE(ParseListenAddress("[::]:1")->is_loopback);
  EXPECT_FALSE(ParseListenAddress("localhost.example.com:1")->is_loopback);
  EXPECT_FALSE(ParseListenAddress("127.example.com:1")->is_loopback);
  EXPECT_EQ(ParseListenAddress("unix:/tmp/x")->ToString(), "unix:/tmp/x");
  for (const char* bad : {"", "7070", ":7070", "::1:7070", "host:", "host:70000", "host:-1",
                          "host:x", "unix:", "[]:1"}) {
    EXPECT_FALSE(ParseListenAddress(bad).ok()) << bad;
  }
  EXPECT_FALSE(ParseListenAddress("unix:" + std::string(200, 'x')).ok());
}

std::string WhyInvalid(const std::function<void(ServerOptions&)>& change) {
  ServerOptions options;
  change(options);
  const absl::Status status = Validate(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(OptionsTest, EveryErrorNamesTheFlagAndItsValue) {
  EXPECT_TRUE(Validate(ServerOptions()).ok());
  EXPECT_THAT(WhyInvalid([](auto& o) { o.listen = "0.0.0.0:7070"; }),
              AllOf(HasSubstr("--listen=0.0.0.0:7070"), HasSubstr("--insecure_listen")));
  EXPECT_THAT(WhyInvalid([](auto& o) { o.http_listen = "[::]:1"; }),
              HasSubstr("--http_listen=[::]:1"));
  EXPECT_THAT(WhyInvalid([](auto& o) { o.http_listen = "unix:/x"; }), HasSubstr("--http_listen"));
  EXPECT_THAT(WhyInvalid([](auto& o) { o.threads = -1; }), HasSubstr("--threads=-1"));
  EXPECT_THAT(WhyInvalid([](auto& o) { o.scheduler.max_queue_requests = 0; }),
              HasSubstr("--max_queue_requests=0"));
  EXPECT_THAT(WhyInvalid([](auto& o) { o.scheduler.max_queue_bytes = -5; }),
              HasSubstr("--max_queue_bytes=-5"));
  EXPECT_THAT(WhyInvalid([](auto& o) { o.scheduler.max_batch_problems = 0; }),
              HasSubstr("--max_batch_problems=0"));
  EXPECT_THAT(WhyInvalid([](auto& o) { o.scheduler.max_batch_bytes = 0; }),
              HasSubstr("--max_batch_bytes=0"));
  EXPECT_THAT(WhyInvalid([](auto& o) { o.scheduler.max_batch_delay_us = -1; }),
              HasSubstr("--max_batch_delay_us=-1"));
  EXPECT_THAT(WhyInvalid([](auto& o) { o.scheduler.max_slice_us = -1; }),
              HasSubstr("--max_slice_us=-1"));
  EXPECT_THAT(WhyInvalid([](auto& o) { o.scheduler.max_queue_ms = -1; }),
              HasSubstr("--max_queue_ms=-1"));
  EXPECT_THAT(WhyInvalid([](auto& o) { o.tenant_metadata = "attnd-tenant"; }),
              HasSubstr("needs --tenants"));
  EXPECT_THAT(WhyInvalid([](auto& o) {
                o.tenants = "/x";
                o.tenant_metadata = "Attnd-Tenant";
              }),
              HasSubstr("--tenant_metadata=Attnd-Tenant"));
  EXPECT_THAT(WhyInvalid([](auto& o) { o.max_unary_bytes = int64_t{1} << 31; }),
              HasSubstr("--max_unary_bytes=2147483648"));
  EXPECT_THAT(WhyInvalid([](auto& o) { o.receive_bytes = o.max_unary_bytes - 1; }),
              HasSubstr("--receive_bytes="));
  EXPECT_THAT(WhyInvalid([](auto& o) { o.arena_bytes = o.max_unary_bytes; }),
              HasSubstr("--arena_bytes="));
  EXPECT_THAT(WhyInvalid([](auto& o) { o.shm_name_prefix = "/attnd-"; }),
              HasSubstr("--shm_name_prefix=/attnd-"));
  EXPECT_THAT(WhyInvalid([](auto& o) { o.shm_name_prefix = std::string(201, 'x'); }),
              HasSubstr("--shm_name_prefix=x"));
  EXPECT_THAT(WhyInvalid([](auto& o) { o.max_shm_names = 0; }), HasSubstr("--max_shm_names=0"));
  EXPECT_THAT(WhyInvalid([](auto& o) {
                o.allow_shm_names = true;
                o.max_region_bytes = 0;
              }),
              HasSubstr("--max_region_bytes=0"));
  EXPECT_THAT(WhyInvalid([](auto& o) { o.drain_delay_ms = -1; }), HasSubstr("--drain_delay_ms=-1"));
  EXPECT_THAT(WhyInvalid([](auto& o) { o.drain_timeout_ms = -1; }),
              HasSubstr("--drain_timeout_ms=-1"));
  EXPECT_THAT(WhyInvalid([](auto& o) { o.default_deadline_ms = -1; }),
              HasSubstr("--default_deadline_ms=-1"));
  ServerOptions open;
  open.listen = open.http_listen = "0.0.0.0:7070";
  open.insecure_listen = true;
  EXPECT_TRUE(Validate(open).ok());
}

TEST(CallFactsTest, OnlyTheSameHostIsLocal) {
  for (const char* peer :
       {"ipv4:127.0.0.1:42", "ipv6:[::1]:42", "ipv6:%5B::1%5D:42", "unix:/tmp/x", "unix:"}) {
    EXPECT_TRUE(CallerOf(peer, {}, {}).is_local) << peer;
  }
  for (const char* peer :
       {"ipv4:10.0.0.1:42", "ipv6:%5B::2%5D:42", "ipv6:%5B::1:2%5D:42", "", "ipv4:1.127.0.1:1"}) {
    EXPECT_FALSE(CallerOf(peer, {}, {}).is_local) << peer;
  }
}

TEST(CallFactsTest, ATenantIsToldByTheAddressOrATrustedProxy) {
  const auto tenant = [](absl::string_view peer, const Metadata& metadata,
                         const TenantSource& source) {
    return CallerOf(peer, metadata, source).tenant;
  };
  const Metadata named = {{"attnd-tenant", "team-a"}};
  EXPECT_EQ(tenant("ipv4:10.0.0.7:42", named, {false, "attnd-tenant"}), "default");
  const TenantSource by_address{true, ""};
  EXPECT_EQ(tenant("ipv4:10.0.0.7:42", named, by_address), "10.0.0.7") << "anybody can say so";
  EXPECT_EQ(tenant("ipv6:%5B2001:db8::1%5D:42", named, by_address), "2001:db8::1");
  EXPECT_EQ(tenant("ipv6:[::1]:42", named, by_address), "::1");
  EXPECT_EQ(tenant("ipv6:%5B::ffff:10.0.0.7%5D:42", named, by_address), "10.0.0.7");
  EXPECT_EQ(tenant("unix:", named, by_address), "unix");
  EXPECT_EQ(tenant("unix:/run/attnd.sock", named, by_address), "unix");
  EXPECT_EQ(tenant("", named, by_address), "default");
  const TenantSource by_proxy{true, "attnd-tenant"};
  EXPECT_EQ(tenant("ipv4:10.0.0.7:42", named, by_proxy), "team-a");
  EXPECT_EQ(tenant("ipv4:10.0.0.7:42", {}, by_proxy), "10.0.0.7");
  EXPECT_EQ(tenant("ipv4:10.0.0.7:42", {{"attnd-tenant", "team-b"}, {"attnd-tenant", "team-a"}},
                   by_proxy),
            "default")
      << "the proxy let the caller's own pass";
  for (const std::string& hostile :
       std::vector<std::string>{"", "a b", "a\"b", "a\n", "\xff", std::string(65, 'a')}) {
    EXPECT_EQ(tenant("ipv4:10.0.0.7:42", {{"attnd-tenant", hostile}}, by_proxy), "default");
  }
}

TEST(CallFactsTest, OnlyAWholeTraceparentIsCarried) {
  const std::string whole = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  const auto carried = [](const std::string& text) {
    return TraceparentOf({{"traceparent", text}});
  };
  EXPECT_EQ(carried(whole), whole);
  EXPECT_EQ(TraceparentOf({}), "");
  for (const std::string& bad :
       std::vector<std::string>{"", whole + "-x", "ff" + whole.substr(2), "0G" + whole.substr(2),
                                "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
                                "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
                                "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
                                "00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01"}) {
    EXPECT_EQ(carried(bad), "") << bad;
  }
}

TEST(CallFactsTest, GrpcsDeadlineMovesToTheSteadyClock) {
  using std::chrono::system_clock;
  const TimePoint now = std::chrono::steady_clock::now();
  EXPECT_EQ(ToSteady(system_clock::time_point::max(), now), kNever);
  const TimePoint soon = ToSteady(system_clock::now() + std::chrono::seconds(5), now);
  EXPECT_GT(soon, now + std::chrono::seconds(4));
  EXPECT_LE(soon, now + std::chrono::seconds(5));
  EXPECT_LT(ToSteady(system_clock::now() - std::chrono::seconds(5), now), now);
}

TEST(CallFactsTest, ASizeGivenTwiceIsRefused) {
  std::multimap<grpc::string_ref, grpc::string_ref> metadata;
  EXPECT_EQ(*DeclaredBytes(metadata, 100), 100);
  metadata.emplace("attnd-request-bytes", "7");
  EXPECT_EQ(*DeclaredBytes(metadata, 100), 7);
  metadata.emplace("attnd-request-bytes", "7");
  EXPECT_EQ(DeclaredBytes(metadata, 100).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(WorkerPoolTest, IsBoundedAndRunsWhatItTook) {
  std::atomic<int> ran{0};
  {
    CallGate entered;
    ASSERT_TRUE(entered.Enter());
    CallGate hold;
    ASSERT_TRUE(hold.Enter());
    WorkerPool pool(1, 2);
    ASSERT_TRUE(pool.TryPost([&] {
      entered.Leave();
      hold.WaitUntilEmpty(kNever);
    }));
    entered.WaitUntilEmpty(kNever);
    EXPECT_TRUE(pool.TryPost([&] { ++ran; }));
    EXPECT_TRUE(pool.TryPost([&] { ++ran; }));
    EXPECT_FALSE(pool.TryPost([&] { ++ran; }));
    hold.Leave();
  }
  EXPECT_EQ(ran, 2);
}

TEST(CallGateTest, IsShutForNewcomersAndWaitsForThoseInside) {
  CallGate gate;
  ASSERT_TRUE(gate.Enter());
  gate.Shut();
  EXPECT_FALSE(gate.Enter());
  EXPECT_FALSE(gate.WaitUntilEmpty(std::chrono::steady_clock::now()));
  std::thread leaver([&] { gate.Leave(); });
  EXPECT_TRUE(gate.WaitUntilEmpty(kNever));
  leaver.join();
}

TEST(CallGateTest, WhoWatchesIsToldOnceUnlessForgotten) {
  CallGate gate;
  int told = 0;
  const int first = 0, second = 0;
  ASSERT_TRUE(gate.Watch(&first, [&] { ++told; }));
  ASSERT_TRUE(gate.Watch(&second, [&] { told += 100; }));
  gate.Forget(&second);
  gate.Forget(&second);
  gate.Shut();
  gate.Shut();
  EXPECT_EQ(told, 1);
  EXPECT_FALSE(gate.Watch(&second, [&] { ++told; }));
  gate.Forget(&first);
}

TEST(MessageBytesTest, ABufferGoesBackOnlyWhenItsSliceIsGone) {
  BufferPool pool(1 << 20);
  Answer answer;
  answer.o = *pool.Allocate(1000);
  answer.lse = *pool.Allocate(100);
  const unsigned char* const o = answer.o.data();
  std::vector<grpc::Slice> slices;
  {
    const grpc::ByteBuffer buffer = ToByteBuffer({"head", "middle"}, std::move(answer));
    EXPECT_EQ(buffer.Length(), 4u + 1000 + 6 + 100);
    ASSERT_TRUE(buffer.Dump(&slices).ok());
  }
  ASSERT_EQ(slices.size(), 4u);
  EXPECT_EQ(slices[1].begin(), o);  // not a copy
  EXPECT_GE(pool.used_bytes(), 1100);
  slices.clear();
  EXPECT_EQ(pool.used_bytes(), 0);
}

TEST(DefaultArenaTest, HoldsTheLargestStreamWhereTheMachineCan) {
  constexpr int64_t kGib = int64_t{1} << 30;
  const int64_t arena_bytes = DefaultArenaBytes(64 * kGib, kGib / 4, /*has_gpu=*/false);
  EXPECT_GE(arena_bytes / 2 / 9 * 8, 3 * kGib);
  EXPECT_LT(arena_bytes, 7 * kGib);
  EXPECT_GE(DefaultArenaBytes(64 * kGib, kGib / 4, /*has_gpu=*/true) / 2 / 9 * 8, 6 * kGib);
  EXPECT_EQ(DefaultArenaBytes(4 * kGib, kGib / 4, /*has_gpu=*/false), 2 * kGib);
  EXPECT_EQ(DefaultArenaBytes(kGib, kGib / 4, /*has_gpu=*/false), kGib / 4 * 3);
}

TEST(FillInTest, ThreadsThatServeConnections) {
  EXPECT_EQ(DefaultIoThreads(1), 4);
  EXPECT_EQ(DefaultIoThreads(6), 6);
  EXPECT_EQ(DefaultIoThreads(256), 8);
  ServerOptions options;
  EXPECT_GE(FillIn(options, false).io_threads, 1);
  EXPECT_EQ(FillIn(options, false).busy_poll_us, 0);
  EXPECT_GE(FillIn(options, true).busy_poll_us, 0);
  options.io_threads = 5;
  options.busy_poll_us = 7;
  EXPECT_EQ(FillIn(options, true).io_threads, 5);
  EXPECT_EQ(FillIn(options, true).busy_poll_us, 7);
  options.busy_poll_us = -2;
  EXPECT_FALSE(Validate(options).ok());
}

TEST(DefaultArenaTest, WhatIsAskedForStays) {
  ServerOptions options;
  options.arena_bytes = 1000 << 20;
  EXPECT_EQ(FillIn(options, false).arena_bytes, 1000 << 20);
  EXPECT_EQ(FillIn(options, false).scheduler.max_queue_bytes, 1000 << 20);
  options.scheduler.max_queue_bytes = 5;
  EXPECT_EQ(FillIn(options, false).scheduler.max_queue_bytes, 5);
}

class DeadlineWatchTest : public ::testing::Test {
 protected:
  SteadyClock clock_;
  DeadlineWatch watch_{&clock_};
};

TEST_F(DeadlineWatchTest, CallsInTheOrderOfDeadlinesNotOfCalls) {
  const TimePoint now = clock_.Now();
  std::promise<void> both;
  std::vector<int> order;
  watch_.Add(now + std::chrono::hours(1), [&] { order.push_back(3); });
  watch_.Add(now + std::chrono::milliseconds(2), [&] {
    order.push_back(2);
    both.set_value();
  });
  watch_.Add(now - std::chrono::milliseconds(1), [&] { order.push_back(1); });
  both.get_future().wait();
  EXPECT_THAT(order, ::testing::ElementsAre(1, 2));
}

TEST_F(DeadlineWatchTest, WhatIsTakenBackIsDroppedAndNotCalled) {
  const auto held = std::make_shared<int>(0);
  std::atomic<bool> called{false};
  const TimePoint soon = clock_.Now() + std::chrono::hours(1);
  const auto entry = watch_.Add(soon, [&called, held] { called = true; });
  watch_.Add(soon, [held] {});
  EXPECT_EQ(held.use_count(), 3);
  watch_.TakeBack(entry);
  EXPECT_EQ(held.use_count(), 2);
  watch_.TakeBack(entry);
  watch_.TakeBack(DeadlineWatch::Entry());
  EXPECT_EQ(held.use_count(), 2);
  EXPECT_FALSE(called);
}

TEST_F(DeadlineWatchTest, MayBeAskedFromWithinACall) {
  std::promise<void> done;
  watch_.Add(clock_.Now(), [&] {
    const auto entry = watch_.Add(kNever, [] {});
    watch_.TakeBack(entry);
    watch_.Add(clock_.Now(), [&] { done.set_value(); });
  });
  done.get_future().wait();
}

}  // namespace
}  // namespace attnd::server
