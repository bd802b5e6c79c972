// Calls over the side socket, byte by byte: each ends once, is counted, and nothing that a caller
// sends reaches others.
#include "server/services/local_calls.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/regions/protocol/frames.h"
#include "server/regions/protocol/packet.h"
#include "tests/service/region_fixture.h"

namespace attnd::testing {
namespace {

using regions::AnswerFrame;
using regions::CallAnswerFrame;
using regions::CallFrame;
using regions::HelloFrame;
using regions::OpenCallsFrame;
using regions::UniqueFd;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A caller that says whatever a test likes.
class Caller {
 public:
  explicit Caller(const std::string& path)
      : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    const auto address = regions::SocketAddress(path);
    const timeval patience = {kPatience.count(), 0};
    EXPECT_EQ(setsockopt(fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
    EXPECT_EQ(connect(fd(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)), 0);
    Receive();  // the greeting
  }

  // The code of the server's answer.
  absl::StatusCode Open() {
    const OpenCallsFrame frame;
    EXPECT_TRUE(regions::SendPacket(fd(), &frame, sizeof(frame)).ok());
    return static_cast<absl::StatusCode>(As<AnswerFrame>(Receive()).code);
  }
  void Send(const std::string& bytes, int with_fd = -1) const {
    EXPECT_TRUE(
        regions::SendPacket(fd(), bytes.data(), static_cast<int64_t>(bytes.size()), with_fd).ok());
  }
  void Call(const v1::ComputeRequest& request, int64_t timeout_us = 0) const {
    Send(Frame(timeout_us) + request.SerializeAsString());
  }
  // Empty: the connection has ended.
  std::string Receive() const {
    std::array<char, 1 << 16> bytes;
    const auto packet = regions::ReceivePacket(fd(), bytes.data(), bytes.size());
    return packet.ok() ? std::string(bytes.data(), static_cast<size_t>(packet->size_bytes)) : "";
  }
  struct Answer {
    CallAnswerFrame frame;
    std::string bytes;
    absl::StatusCode code() const { return static_cast<absl::StatusCode>(frame.code); }
  };
  Answer Wait() const {
    const std::string packet = Receive();
    EXPECT_GE(packet.size(), sizeof(CallAnswerFrame));
    if (packet.size() < sizeof(CallAnswerFrame)) return {{.code = -1}, ""};
    return {As<CallAnswerFrame>(packet), packet.substr(sizeof(CallAnswerFrame))};
  }
  void Leave() { socket_ = UniqueFd(); }
  void HangUp() const { shutdown(fd(), SHUT_WR); }

  static std::string Frame(int64_t timeout_us = 0) {
    CallFrame frame;
    frame.timeout_us = timeout_us;
    return {reinterpret_cast<const char*>(&frame), sizeof(frame)};
  }

 private:
  template <typename T>
  static T As(const std::string& bytes) {
    T frame = {};
    EXPECT_GE(bytes.size(), sizeof(frame));
    if (bytes.size() >= sizeof(frame)) std::memcpy(&frame, bytes.data(), sizeof(frame));
    return frame;
  }
  int fd() const { return socket_.get(); }

  UniqueFd socket_;
};

class LocalCallsTest : public RegionTest {
 protected:
  using RegionTest::RegionTest;

  Caller NewCaller() const {
    Caller caller(folder_ / "side.sock");
    EXPECT_EQ(caller.Open(), absl::StatusCode::kOk);
    return caller;
  }
  v1::ComputeRequest Request(bool want_lse = false) {
    v1::ComputeRequest request = MakeRequest(kMiddling);
    request.mutable_header()->set_want_lse(want_lse);
    return InRegion(std::move(request));
  }
  double Finished(const std::string& code, const std::string& stage) const {
    return server_.Metric("attnd_requests_finished_total{code=\"" + code + "\",stage=\"" + stage +
                          "\"}");
  }
  ::testing::AssertionResult HasConnections(int connections) const {
    return Eventually([&] { return server_.Metric("attnd_call_connections") == connections; });
  }
};

TEST_F(LocalCallsTest, AnswerTheBitsOfOtherCalls) {
  const Caller caller = NewCaller();
  int calls = 0;
  for (const bool want_lse : {false, true}) {
    v1::ComputeRequest request = MakeRequest(kMiddling);
    request.mutable_header()->set_want_lse(want_lse);
    request.mutable_header()->set_request_id("over there");
    const Outcome unary = server_.Compute(request);
    ASSERT_TRUE(IsRight(unary, request));
    for (int i = 0; i < 3; ++i, ++calls) {
      std::memset(region_->bytes().data(), 0, region_->bytes().size());
      caller.Call(InRegion(request));
      const Caller::Answer answer = caller.Wait();
      ASSERT_EQ(answer.code(), absl::StatusCode::kOk) << answer.bytes;
      v1::ComputeResponse response;
      ASSERT_TRUE(response.ParseFromString(answer.bytes));
      EXPECT_EQ(response.header().transport(), v1::TRANSPORT_REGION);
      EXPECT_EQ(response.header().request_id(), "over there");
      EXPECT_EQ(response.header().o().SerializeAsString(),
                unary.response.header().o().SerializeAsString());
      EXPECT_GE(response.header().timing().total_us(), response.header().timing().run_us());
      ExpectInRegion(unary.response);
    }
  }
  EXPECT_EQ(server_.Metric("attnd_calls_total{transport=\"local\"}"), calls);
  EXPECT_EQ(server_.Metric("attnd_call_connections"), 1);
  EXPECT_EQ(server_.Metric("attnd_region_connections"), 1);  // the region's own
  EXPECT_TRUE(IsIdle());
}

TEST_F(LocalCallsTest, ErrorsAreThoseOfOtherCallsAndTheConnectionStays) {
  const Caller caller = NewCaller();
  const auto expect = [&](const v1::ComputeRequest& request, absl::StatusCode code,
                          const std::string& text) {
    caller.Call(request);
    const Caller::Answer answer = caller.Wait();
    EXPECT_EQ(answer.code(), code) << answer.bytes;
    EXPECT_THAT(answer.bytes, HasSubstr(text));
    EXPECT_EQ(answer.frame.is_untouched, 1U);
    EXPECT_EQ(server_.Metric("attnd_region_leases"), 0) << "after: " << text;
  };
  v1::ComputeRequest request = Request();
  request.mutable_header()->add_alibi_slopes(1);
  expect(request, absl::StatusCode::kInvalidArgument, "alibi_slopes");
  request = Request();
  request.mutable_header()->mutable_q()->mutable_region()->set_offset_bytes(kRegionBytes);
  expect(request, absl::StatusCode::kInvalidArgument, "do not lie in a region");
  request = Request();
  request.mutable_header()->mutable_q()->mutable_region()->set_handle(std::string(16, 'x'));
  expect(request, absl::StatusCode::kNotFound, "there is no such region");
  // What would need a message.
  request = MakeRequest({});
  expect(request, absl::StatusCode::kInvalidArgument, "all of its tensors in regions: 2048 bytes");
  request = Request();
  request.mutable_header()->clear_o_destination();
  expect(request, absl::StatusCode::kInvalidArgument, "0 bytes lie in the message, ");
  caller.Send(Caller::Frame() + "no request");
  EXPECT_EQ(caller.Wait().code(), absl::StatusCode::kInvalidArgument);
  caller.Call(Request(), -1);
  EXPECT_THAT(caller.Wait().bytes, HasSubstr("timeout_us is -1"));
  caller.Call(Request());
  EXPECT_EQ(caller.Wait().code(), absl::StatusCode::kOk);
  EXPECT_EQ(Finished("INVALID_ARGUMENT", "receive"), 6);
  EXPECT_TRUE(IsIdle());
}

// Longer than a packet may be: cut.
TEST_F(LocalCallsTest, AnErrorFitsItsPacket) {
  const Caller caller = NewCaller();
  device_->FailWith(absl::InternalError(std::string(100'000, 'e')));
  caller.Call(Request());
  const Caller::Answer answer = caller.Wait();
  EXPECT_EQ(answer.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(answer.bytes.size(), regions::kMaxCallAnswerPacketBytes - sizeof(CallAnswerFrame));
  EXPECT_EQ(answer.frame.is_untouched, 0U) << "it was handed to the device";
}

class ShortQueueTest : public LocalCallsTest {
 protected:
  ShortQueueTest() : LocalCallsTest(/*max_queue_requests=*/2) {}
};

TEST_F(ShortQueueTest, AFullQueueSaysWhenToComeAgain) {
  device_->Hold();
  std::vector<std::unique_ptr<PendingCall>> others;
  ASSERT_TRUE(Eventually([&] {  // some are handed out before the device stands
    others.push_back(server_.Begin(MakeRequest({})));
    return others.size() > 10 && server_.Metric("attnd_queue_requests") == 2;
  }));
  const Caller caller = NewCaller();
  caller.Call(Request());
  const Caller::Answer answer = caller.Wait();
  EXPECT_EQ(answer.code(), absl::StatusCode::kResourceExhausted) << answer.bytes;
  EXPECT_EQ(answer.frame.has_pushback, 1U);
  EXPECT_GT(answer.frame.pushback_ms, 0);
  EXPECT_EQ(answer.frame.is_untouched, 1U);
  device_->Release();
  for (const auto& call : others) call->Wait();
  EXPECT_TRUE(IsIdle());
}

TEST_F(LocalCallsTest, ADeadlinePassesInTheQueue) {
  device_->Hold();
  const auto running = server_.Begin(MakeRequest({}));
  device_->WaitUntilHeld();
  const Caller caller = NewCaller();
  caller.Call(Request(), 50'000);
  const Caller::Answer answer = caller.Wait();  // although the device is held
  EXPECT_EQ(answer.code(), absl::StatusCode::kDeadlineExceeded) << answer.bytes;
  EXPECT_EQ(answer.frame.is_untouched, 1U);
  EXPECT_EQ(server_.Metric("attnd_region_leases"), 0);
  device_->Release();
  EXPECT_TRUE(running->Wait().status.ok());
  caller.Call(Request(), int64_t{1} << 62);  // beyond the clock: none
  EXPECT_EQ(caller.Wait().code(), absl::StatusCode::kOk);
}

TEST_F(LocalCallsTest, ACallerThatLeavesCancelsItsCall) {
  device_->Hold();
  const auto running = server_.Begin(MakeRequest({}));
  device_->WaitUntilHeld();
  Caller queued = NewCaller();
  queued.Call(Request());
  ASSERT_TRUE(Eventually([&] { return server_.Metric("attnd_queue_requests") == 1; }));
  queued.Leave();
  EXPECT_TRUE(Eventually([&] { return Finished("CANCELLED", "queue") == 1; }));
  EXPECT_EQ(server_.Metric("attnd_region_leases"), 0);
  device_->Release();
  EXPECT_TRUE(running->Wait().status.ok());
  // While it runs: it ends when the device is done with it, and is counted once.
  device_->Hold();
  const Caller at_work = NewCaller();
  at_work.Call(Request());
  device_->WaitUntilHeld();
  at_work.HangUp();
  EXPECT_TRUE(HasConnections(0));
  device_->Release();
  EXPECT_TRUE(IsIdle());
  const Caller next = NewCaller();
  next.Call(Request());
  EXPECT_EQ(next.Wait().code(), absl::StatusCode::kOk);
}

TEST_F(LocalCallsTest, WhatIsNoCallEndsItsOwnConnectionOnly) {
  const Caller other = NewCaller();
  const std::string message = Request().SerializeAsString();
  std::string magic = Caller::Frame();
  magic[0] ^= 1;
  std::string version = Caller::Frame();
  version[4] ^= 1;
  std::string type = Caller::Frame();
  type[6] ^= 1;
  double refused = 0;
  const auto refusals = [&] {
    return server_.Metric("attnd_region_refusals_total{reason=\"connection\"}");
  };
  for (const std::string& bytes :
       {std::string("x"), magic + message, version + message, type + message,
        Caller::Frame() + std::string(regions::kMaxCallPacketBytes, 'x')}) {
    const Caller caller = NewCaller();
    caller.Send(bytes);
    EXPECT_THAT(caller.Receive(), IsEmpty());
    EXPECT_EQ(refusals(), ++refused);
  }
  const Caller with_fd = NewCaller();
  with_fd.Send(Caller::Frame() + message, open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_THAT(with_fd.Receive(), IsEmpty());
  // One call at a time.
  device_->Hold();
  const Caller hasty = NewCaller();
  hasty.Send(Caller::Frame() + message);
  device_->WaitUntilHeld();
  hasty.Send(Caller::Frame() + message);
  EXPECT_THAT(hasty.Receive(), IsEmpty());
  device_->Release();
  EXPECT_TRUE(HasConnections(1));
  EXPECT_TRUE(IsIdle());
  other.Call(Request());
  EXPECT_EQ(other.Wait().code(), absl::StatusCode::kOk);
  EXPECT_EQ(server_->metrics().received(), server_->metrics().finished());
}

TEST_F(LocalCallsTest, ManyCallersAtOnce) {
  constexpr int kCallers = 8;
  std::vector<v1::ComputeRequest> requests;
  std::vector<std::unique_ptr<LocalRegion>> regions;
  for (int i = 0; i < kCallers; ++i) {
    regions.push_back(NewRegion());
    std::swap(region_, regions.back());
    requests.push_back(Request());
    std::swap(region_, regions.back());
  }
  const v1::ComputeResponse expected = server_.Compute(MakeRequest(kMiddling)).response;
  std::vector<std::thread> threads;
  for (int i = 0; i < kCallers; ++i) {
    threads.emplace_back([&, i] {
      const Caller caller = NewCaller();
      for (int call = 0; call < 50; ++call) {
        std::memset(regions[i]->bytes().data() + kO, 0, expected.o().size());
        caller.Call(requests[i]);
        const Caller::Answer answer = caller.Wait();
        ASSERT_EQ(answer.code(), absl::StatusCode::kOk) << answer.bytes;
        ASSERT_EQ(
            std::memcmp(regions[i]->bytes().data() + kO, expected.o().data(), expected.o().size()),
            0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(server_.Metric("attnd_calls_total{transport=\"local\"}"), 50 * kCallers);
  EXPECT_TRUE(HasConnections(0));
  EXPECT_TRUE(IsIdle());
}

TEST_F(LocalCallsTest, ADrainAnswersWhatIsThereAndRefusesTheRest) {
  device_->Hold();
  const Caller early = NewCaller();
  const Caller late = NewCaller();
  early.Call(Request());
  device_->WaitUntilHeld();
  std::thread drain([&] { EXPECT_TRUE(server_->Drain()); });
  ASSERT_TRUE(Eventually([&] { return server_->readiness() != server::Readiness::kReady; }));
  ASSERT_TRUE(Eventually([&] {
    late.Call(Request());
    const Caller::Answer answer = late.Wait();
    EXPECT_TRUE(answer.code() == absl::StatusCode::kUnavailable ||
                answer.code() == absl::StatusCode::kInvalidArgument)  // the same places
        << answer.bytes;
    return answer.code() == absl::StatusCode::kUnavailable;
  }));
  device_->Release();
  EXPECT_EQ(early.Wait().code(), absl::StatusCode::kOk);
  drain.join();
}

TEST_F(LocalCallsTest, AServerThatEndsEndsItsConnections) {
  device_->Hold();
  const Caller idle = NewCaller();
  const Caller at_work = NewCaller();
  at_work.Call(Request());
  device_->WaitUntilHeld();
  std::thread destroy([&] { server_.Destroy(); });
  EXPECT_THAT(idle.Receive(), IsEmpty());
  EXPECT_THAT(at_work.Receive(), IsEmpty());
  device_->Release();
  destroy.join();
}

TEST_F(LocalCallsTest, AConnectionWithRegionsCarriesNone) {
  Caller caller(folder_ / "side.sock");
  regions::RegisterFrame frame;
  frame.size_bytes = 4096;
  const UniqueFd file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(posix_fallocate(file.get(), 0, frame.size_bytes), 0);
  ASSERT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  caller.Send(std::string(reinterpret_cast<const char*>(&frame), sizeof(frame)), file.get());
  EXPECT_EQ(caller.Receive().size(), sizeof(AnswerFrame));
  ASSERT_EQ(server_.Metric("attnd_regions"), 2);
  EXPECT_EQ(caller.Open(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(caller.Receive(), IsEmpty());
  EXPECT_EQ(server_.Metric("attnd_call_connections"), 0);
}

TEST_F(LocalCallsTest, ConnectionsAreBounded) {
  std::vector<Caller> callers;
  const server::LocalCallsOptions options;
  for (int i = 0; i < options.max_connections; ++i) callers.push_back(NewCaller());
  EXPECT_EQ(Caller(folder_ / "side.sock").Open(), absl::StatusCode::kResourceExhausted);
  callers.front().Leave();
  EXPECT_TRUE(HasConnections(options.max_connections - 1));
  EXPECT_EQ(Caller(folder_ / "side.sock").Open(), absl::StatusCode::kOk);
  callers.back().Call(Request());
  EXPECT_EQ(callers.back().Wait().code(), absl::StatusCode::kOk);
}

TEST(LocalCalls, AreNotTakenBeforeTheServerIsUp) {
  server::LocalCalls calls({});
  EXPECT_EQ(calls.Take(UniqueFd()).code(), absl::StatusCode::kUnavailable);
  calls.Stop();
}

}  // namespace
}  // namespace attnd::testing
