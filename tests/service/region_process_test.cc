// The program attnd and callers on its host, with the flags that people give.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include "client/client.h"
#include "tests/service/harness.h"
#include "tests/service/process.h"

namespace attnd::testing {
namespace {

using ::testing::HasSubstr;

class RegionProcessTest : public ::testing::Test {
 protected:
  RegionProcessTest() {
    char name[] = "/tmp/attnd-test-XXXXXX";
    EXPECT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    // Of this process and of those that it starts.
    EXPECT_EQ(setenv("XDG_RUNTIME_DIR", name, 1), 0);
  }
  ~RegionProcessTest() override {
    unsetenv("XDG_RUNTIME_DIR");
    std::filesystem::remove_all(folder_);
  }

  static std::unique_ptr<Client> ClientOf(const AttndProcess& server,
                                          const std::string& local_socket = "") {
    ClientOptions options;
    options.max_tries = 1;
    options.local_socket = local_socket;
    return *Client::Connect(server.address(), options);
  }
  // One key, so that the time is that of the bytes; or many.
  AttentionRequest Request(int64_t rows, int64_t keys = 1) {
    values_.assign(static_cast<size_t>(std::max(rows, keys)) * 64, 0.25F);
    AttentionRequest request;
    request.q = {DType::kFloat32, {1, 1, rows, 64}, values_.data()};
    request.k = request.v = {DType::kFloat32, {1, 1, keys, 64}, values_.data()};
    return request;
  }

  std::string folder_;
  std::vector<float> values_;
};

TEST_F(RegionProcessTest, S46EighteenMegabytesWorkOutOfTheBoxEitherWay) {
  AttndProcess server({"--local_socket="});
  ASSERT_TRUE(server.WaitUntilReady());
  const AttentionRequest request = Request(18 << 12);  // 18 MB
  const auto shared = ClientOf(server)->Attention(request);
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_EQ(shared->transport, Transport::kRegion);
  const auto message = ClientOf(server, kNoLocalSocket)->Attention(request);
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->transport, Transport::kUnary);
  EXPECT_EQ(shared->o.bytes, message->o.bytes);
}

TEST_F(RegionProcessTest, ASecondServerFindsTheDefaultPathTakenAndServesWithout) {
  const std::string path = folder_ + "/attnd.sock";
  AttndProcess first({"--local_socket=", "--drain_delay_ms=0"});
  ASSERT_TRUE(first.WaitUntilReady());
  EXPECT_TRUE(std::filesystem::exists(path));
  AttndProcess second({"--local_socket=", "--drain_delay_ms=0"});
  ASSERT_TRUE(second.WaitUntilReady());
  const AttentionRequest request = Request(4096);
  EXPECT_EQ(ClientOf(first)->Attention(request)->transport, Transport::kRegion);
  EXPECT_EQ(ClientOf(second)->Attention(request)->transport, Transport::kUnary);
  second.Signal(SIGTERM);
  const ExitedProcess second_exit = second.WaitForExit();
  EXPECT_EQ(second_exit.exit_status, 0);
  EXPECT_THAT(second_exit.output, HasSubstr("event=no_local_socket path=" + path));
  EXPECT_THAT(second_exit.output, HasSubstr("a server already listens on"));
  EXPECT_TRUE(std::filesystem::exists(path));
  first.Signal(SIGTERM);
  const ExitedProcess first_exit = first.WaitForExit();
  EXPECT_EQ(first_exit.exit_status, 0);
  EXPECT_THAT(first_exit.output, HasSubstr("event=local_socket path=" + path));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(RegionProcessTest, AGivenPathThatIsTakenIsAnErrorAndNoneIsNone) {
  const std::string flag = "--local_socket=" + folder_ + "/given.sock";
  AttndProcess first({flag});
  ASSERT_TRUE(first.WaitUntilReady());
  const ExitedProcess second = RunAttnd({flag});
  EXPECT_EQ(second.exit_status, 1);
  EXPECT_THAT(second.output, HasSubstr(flag));
  EXPECT_EQ(RunAttnd({"--max_region_bytes=-1"}).exit_status, 2);
  AttndProcess off({"--local_socket=", "--max_region_bytes=0"});
  ASSERT_TRUE(off.WaitUntilReady());
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/attnd.sock"));
}

// The path of one that was killed is no obstacle, and its regions are nobody's.
TEST_F(RegionProcessTest, S28AServerThatDiesEndsTheCallAtOnceAndTheNextOneServes) {
  auto server = std::make_unique<AttndProcess>(std::vector<std::string>{"--local_socket="});
  ASSERT_TRUE(server->WaitUntilReady());
  const auto client = ClientOf(*server);
  AttentionRequest request = Request(40'000, 40'000);  // seconds of a kernel
  request.transport = Transport::kRegion;
  std::promise<absl::Status> end;
  client->AttentionAsync(request, [&end](const absl::StatusOr<AttentionResult>& result) {
    end.set_value(result.status());
  });
  ASSERT_TRUE(Eventually([&] {
    return MetricIn(HttpGet(server->http_port(), "/metrics").second, "attnd_region_leases") == 4;
  }));
  server->Signal(SIGKILL);
  auto ended = end.get_future();
  ASSERT_EQ(ended.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(ended.get().code(), absl::StatusCode::kUnavailable);
  server = std::make_unique<AttndProcess>(std::vector<std::string>{"--local_socket="});
  ASSERT_TRUE(server->WaitUntilReady());
  const auto result = ClientOf(*server)->Attention(Request(4096));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->transport, Transport::kRegion);
}

}  // namespace
}  // namespace attnd::testing
