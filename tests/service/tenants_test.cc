// Tenants through a whole server: who is whose, in which order they run, and what a reload does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/service/harness.h"

namespace attnd::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

CallOptions As(const std::string& tenant) { return {.metadata = {{"attnd-tenant", tenant}}}; }

class TenantsTest : public ::testing::Test {
 protected:
  ~TenantsTest() override { std::filesystem::remove(path_); }

  void WriteFile(const std::string& text) const { std::ofstream(path_) << text; }

  // One request a batch, on a device that can be held.
  TestServer& Start(const std::string& tenants, const std::string& metadata = "attnd-tenant") {
    WriteFile(tenants);
    server::ServerOptions options = TestOptions();
    options.tenants = path_;
    options.tenant_metadata = metadata;
    options.scheduler.max_batch_problems = 1;
    auto device = std::make_unique<GatedDevice>();
    device_ = device.get();
    server_ = std::make_unique<TestServer>(options, std::move(device));
    return *server_;
  }

  std::unique_ptr<PendingCall> Call(const std::string& id, const std::string& tenant) {
    v1::ComputeRequest request = MakeRequest({});
    request.mutable_header()->set_request_id(id);
    return std::make_unique<PendingCall>(server_->NewChannel(), request.SerializeAsString(),
                                         As(tenant));
  }

  // Request ids in the order of running, since the warm-up.
  std::vector<std::string> ran() const {
    std::vector<std::string> ids = device_->ran();
    ids.erase(std::remove(ids.begin(), ids.end(), "warm-up"), ids.end());
    return ids;
  }

  void WaitForQueue(int requests) const {
    ASSERT_TRUE(Eventually([&] { return server_->Metric("attnd_queue_requests") == requests; }));
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/attnd_tenants_", getpid());
  std::unique_ptr<TestServer> server_;
  GatedDevice* device_ = nullptr;
};

TEST_F(TenantsTest, ALightTenantIsNextBesideAFlood) {
  Start("light\nflood\n");
  device_->Hold();
  std::vector<std::unique_ptr<PendingCall>> calls;
  calls.push_back(Call("running", "flood"));
  device_->WaitUntilHeld();
  for (int i = 0; i < 10; ++i) calls.push_back(Call("flood", "flood"));
  WaitForQueue(10);
  calls.push_back(Call("light", "light"));
  WaitForQueue(11);
  device_->Release();
  for (auto& call : calls) EXPECT_TRUE(call->Wait().status.ok());
  ASSERT_EQ(ran().size(), 12u);
  EXPECT_EQ(ran()[1], "light");
  EXPECT_GT(server_->Metric("attnd_tenant_device_seconds_total{tenant=\"light\"}"), 0);
}

TEST_F(TenantsTest, WithoutATrustedProxyNobodyIsTakenAtHisWord) {
  Start("light\n127.0.0.1 max_queue_requests=2\n", /*metadata=*/"");
  device_->Hold();
  std::vector<std::unique_ptr<PendingCall>> calls;
  calls.push_back(Call("running", "light"));
  device_->WaitUntilHeld();
  for (int i = 0; i < 2; ++i) calls.push_back(Call("waiting", "light"));
  WaitForQueue(2);
  const Outcome refused = Call("refused", "light")->Wait();
  EXPECT_EQ(refused.code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("tenant 127.0.0.1 has its share"));
  EXPECT_GE(std::stoi(refused.Trailer("grpc-retry-pushback-ms")), 1);
  EXPECT_EQ(server_->Metric("attnd_refusals_total{reason=\"tenant_requests\"}"), 1);
  device_->Release();
  for (auto& call : calls) EXPECT_TRUE(call->Wait().status.ok());
}

TEST_F(TenantsTest, AReloadDropsNoCallAndAWrongFileChangesNothing) {
  TestServer& server = Start("a max_queue_requests=5\n");
  device_->Hold();
  std::vector<std::unique_ptr<PendingCall>> calls;
  calls.push_back(Call("running", "a"));
  device_->WaitUntilHeld();
  for (int i = 0; i < 4; ++i) calls.push_back(Call("waiting", "a"));
  WaitForQueue(4);
  const auto bound = [&] { return Call("refused", "a")->Wait().status.error_message(); };
  WriteFile("a max_queue_requests=nonsense\n");
  server->ReloadTenants();
  calls.push_back(Call("waiting", "a"));
  WaitForQueue(5);
  EXPECT_THAT(bound(), HasSubstr("its bound is 5"));
  WriteFile("a max_queue_requests=3\nb\n");
  server->ReloadTenants();
  EXPECT_THAT(bound(), HasSubstr("its bound is 3"));
  WriteFile("b\n");
  server->ReloadTenants();
  device_->Release();
  for (auto& call : calls) EXPECT_TRUE(call->Wait().status.ok());
  EXPECT_EQ(ran().size(), 6u);
}

TEST_F(TenantsTest, HostileNamesMakeNoSeries) {
  TestServer& server = Start("known\n");
  const auto channel = server.NewChannel();
  const std::string request = MakeRequest({}).SerializeAsString();
  for (int i = 0; i < 300; ++i) {
    const std::string name = i % 2 == 0 ? absl::StrCat("hostile", i) : absl::StrCat("{\"}=,", i);
    ASSERT_TRUE(PendingCall(channel, request, As(name)).Wait().status.ok());
  }
  const std::string metrics = server.Get("/metrics").second;
  EXPECT_THAT(metrics, Not(HasSubstr("hostile")));
  EXPECT_THAT(metrics, HasSubstr("attnd_tenant_device_seconds_total{tenant=\"default\"}"));
  EXPECT_THAT(metrics, HasSubstr("attnd_tenant_device_seconds_total{tenant=\"known\"} 0\n"));
  int series = 0;
  std::istringstream lines(metrics);
  for (std::string line; std::getline(lines, line);) series += line[0] == '#' ? 0 : 1;
  EXPECT_LE(series, 2000);
}

TEST_F(TenantsTest, AFileThatIsWrongAtTheStartIsAnError) {
  WriteFile("a\na\n");
  server::ServerOptions options = TestOptions();
  options.tenants = path_;
  const absl::Status status = server::Server::Start(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(path_, ": line 2")));
}

TEST(TraceTest, TheTraceparentComesBackWithAnswersAndErrors) {
  TestServer server;
  const std::string trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  const CallOptions traced{.metadata = {{"traceparent", trace}}};
  v1::ComputeRequest request = MakeRequest({});
  EXPECT_EQ(server.Compute(request, traced).Trailer("traceparent"), trace);
  EXPECT_EQ(server.Compute(request).Trailer("traceparent"), "(none)");
  EXPECT_EQ(ComputeStream(server.NewChannel(), StreamMessages(request, 100),
                          {.declare = CallOptions::Declare::kNothing, .metadata = traced.metadata})
                .Trailer("traceparent"),
            trace);
  request.mutable_header()->set_priority(-1);
  const Outcome refused = server.Compute(request, traced);
  EXPECT_FALSE(refused.status.ok());
  EXPECT_EQ(refused.Trailer("traceparent"), trace);
  EXPECT_EQ(
      server.Compute(request, {.metadata = {{"traceparent", "00-bogus"}}}).Trailer("traceparent"),
      "(none)");
}

}  // namespace
}  // namespace attnd::testing
