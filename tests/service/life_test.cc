// A server's life: ready, draining, faulty, gone; and who may listen where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/service/harness.h"

namespace attnd::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr char kService[] = "attnd.v1.AttentionService";
// grpc.health.v1: HealthCheckResponse with status SERVING or NOT_SERVING.
const std::string kServing = "\x08\x01";
const std::string kNotServing = "\x08\x02";

std::string HealthRequest(const std::string& service) {
  return service.empty() ? "" : absl::StrCat("\x0a", std::string(1, service.size()), service);
}

class Watch {
 public:
  Watch(const TestServer& server, const std::string& service)
      : stream_(server.NewChannel(), "/grpc.health.v1.Health/Watch") {
    stream_.Write(HealthRequest(service));
  }
  std::string Next() {
    std::string message;
    return stream_.Read(&message) ? message : "(end)";
  }
  void Cancel() { stream_.Cancel(); }
  grpc::Status Finish() { return stream_.Finish(); }

 private:
  RawStream stream_;
};

std::string Check(const TestServer& server, const std::string& service) {
  RawStream stream(server.NewChannel(), "/grpc.health.v1.Health/Check");
  stream.Write(HealthRequest(service));
  std::string message;
  return stream.Read(&message) ? message : "(end)";
}

TEST(HealthTest, ListTellsOfAllServices) {
  TestServer server;
  RawStream stream(server.channel(), "/grpc.health.v1.Health/List");
  stream.Write("");
  std::string message;
  ASSERT_TRUE(stream.Read(&message));
  // An entry of the map: field 1, the service; field 2, its status.
  const auto entry = [](const std::string& service) {
    const std::string pair =
        absl::StrCat("\x0a", std::string(1, service.size()), service, "\x12", "\x02", kServing);
    return absl::StrCat("\x0a", std::string(1, pair.size()), pair);
  };
  EXPECT_EQ(message.substr(0, 2), "\x0a\x06") << "the whole server's";
  EXPECT_THAT(message, HasSubstr(entry(kService)));
  EXPECT_THAT(message, HasSubstr(entry("inference.GRPCInferenceService")));
  EXPECT_TRUE(stream.Finish().ok());
}

TEST(HealthTest, AnUnknownServiceIsNotFoundAndWatchedUntilThereIsOne) {
  TestServer server;
  RawStream check(server.channel(), "/grpc.health.v1.Health/Check");
  check.Write(HealthRequest("another"));
  const grpc::Status status = check.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("another"));
  Watch watch(server, "another");
  EXPECT_EQ(watch.Next(), "\x08\x03");  // SERVICE_UNKNOWN
}

TEST(HealthTest, WhatIsNoRequestIsRefused) {
  TestServer server;
  for (const char* method : {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"}) {
    // Cut off; a name of the wrong type; a name that goes on for ever; none at all.
    for (const std::string& message :
         {std::string("\x0a"),
          std::string("\x0a\x05"
                      "ab"),
          std::string("\x0a\xff\xff\xff\xff\x0f"), std::string("\x0b")}) {
      RawStream stream(server.channel(), method);
      stream.Write(message);
      EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    }
    EXPECT_EQ(RawStream(server.channel(), method).Finish().error_code(),
              grpc::StatusCode::INVALID_ARGUMENT)
        << method;
  }
  EXPECT_EQ(Check(server, ""), kServing);
}

TEST(HealthTest, WatchersComeAndGo) {
  TestServer server;
  for (int i = 0; i < 200; ++i) {
    Watch watch(server, i % 2 == 0 ? "" : kService);
    if (i % 3 != 0) {
      EXPECT_EQ(watch.Next(), kServing);
    }
    watch.Cancel();
    EXPECT_EQ(watch.Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  Watch stays(server, "");
  EXPECT_EQ(stays.Next(), kServing);
  std::thread drain([&] { server->Drain(); });
  EXPECT_EQ(stays.Next(), kNotServing);
  drain.join();
}

// Several threads that serve connections, which look for more before they sleep.
TEST(LifeTest, EveryConnectionIsServedByWhicheverThread) {
  server::ServerOptions options = TestOptions();
  options.io_threads = 3;
  options.busy_poll_us = 2000;
  TestServer server(options);
  const v1::ComputeRequest request = MakeRequest({});
  std::vector<std::thread> callers;
  std::atomic<int> answered{0};
  for (int i = 0; i < 8; ++i) {
    callers.emplace_back([&] {
      const auto channel = server.NewChannel();
      const auto stub = v1::AttentionService::NewStub(channel);
      for (int call = 0; call < 20; ++call) {
        grpc::ClientContext context;
        v1::ComputeResponse response;
        answered += stub->Compute(&context, request, &response).ok();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(answered, 160);
  EXPECT_TRUE(server->Drain());
}

TEST(LifeTest, AReadyServerSaysSoEverywhere) {
  TestServer server;
  EXPECT_EQ(Check(server, ""), kServing);
  EXPECT_EQ(Check(server, kService), kServing);
  EXPECT_EQ(Check(server, "another"), "(end)");
  EXPECT_EQ(server.Get("/readyz"), std::make_pair(200, std::string("ready\n")));
  EXPECT_EQ(server.Get("/livez").first, 200);
  EXPECT_EQ(server.Get("/").first, 404);
  EXPECT_EQ(server.Get("/metricsx").first, 404);
  const auto [status, metrics] = server.Get("/metrics");
  EXPECT_EQ(status, 200);
  EXPECT_THAT(metrics, HasSubstr("attnd_serving 1"));
  EXPECT_THAT(metrics, HasSubstr("attnd_requests_received_total 0"));
}

TEST(LifeTest, ReflectionListsTheServices) {
  TestServer server;
  RawStream stream(server.channel(),
                   "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo");
  // ServerReflectionRequest {list_services = ""}
  ASSERT_TRUE(stream.Write(std::string("\x3a\x00", 2)));
  std::string message;
  ASSERT_TRUE(stream.Read(&message));
  EXPECT_THAT(message, HasSubstr(kService));
  EXPECT_THAT(message, HasSubstr("grpc.health.v1.Health"));
  // ServerReflectionRequest {file_containing_symbol = kService}
  ASSERT_TRUE(stream.Write(absl::StrCat("\x22", std::string(1, sizeof(kService) - 1), kService)));
  ASSERT_TRUE(stream.Read(&message));
  EXPECT_THAT(message, HasSubstr("attnd/v1/attnd.proto"));
}

TEST(LifeTest, S39DrainLosesNoCall) {
  auto device = std::make_unique<GatedDevice>();
  GatedDevice& gate = *device;
  server::ServerOptions options = TestOptions();
  options.drain_delay_ms = 2000;
  TestServer server(options, std::move(device));
  const v1::ComputeRequest request = MakeRequest({});
  Watch whole(server, "");
  Watch service(server, kService);
  EXPECT_EQ(whole.Next(), kServing);
  EXPECT_EQ(service.Next(), kServing);
  gate.Hold();
  const auto in_flight = server.Begin(request);
  gate.WaitUntilHeld();

  bool clean = false;
  std::thread drain([&] { clean = server->Drain(); });
  // Not ready first, and still serving for the delay.
  EXPECT_EQ(whole.Next(), kNotServing);
  EXPECT_EQ(service.Next(), kNotServing);
  EXPECT_EQ(server.Get("/readyz").first, 404);
  EXPECT_EQ(server.Get("/livez").first, 200);
  const auto late = server.Begin(request);
  ASSERT_TRUE(Eventually([&] { return server.Metric("attnd_queue_requests") == 1; }));

  // Then new calls are refused, on old connections and new ones.
  Outcome refused;
  ASSERT_TRUE(Eventually([&] {
    refused = server.Compute(request, {.timeout = milliseconds(50)});
    return refused.code() == grpc::StatusCode::UNAVAILABLE;
  }));
  EXPECT_THAT(refused.status.error_message(), HasSubstr("draining"));
  EXPECT_EQ(refused.Trailer("attnd-version"), ATTND_VERSION);
  EXPECT_EQ(PendingCall(server.NewChannel(), request.SerializeAsString()).Wait().code(),
            grpc::StatusCode::UNAVAILABLE);

  gate.Release();
  EXPECT_TRUE(IsRight(in_flight->Wait(), request));
  EXPECT_TRUE(IsRight(late->Wait(), request));
  drain.join();
  EXPECT_TRUE(clean);
}

TEST(LifeTest, ADrainThatTakesTooLongSaysSo) {
  auto device = std::make_unique<GatedDevice>();
  GatedDevice& gate = *device;
  server::ServerOptions options = TestOptions();
  options.drain_timeout_ms = 50;
  TestServer server(options, std::move(device));
  gate.Hold();
  const auto stuck = server.Begin(MakeRequest({}));
  gate.WaitUntilHeld();
  EXPECT_FALSE(server->Drain());
  gate.Release();
  stuck->Wait();
}

TEST(LifeTest, S40ShutdownWithAnOpenCallEnds) {
  TestServer server;
  RawStream open(server.channel(), kComputeMethod);
  Watch watch(server, "");
  EXPECT_EQ(watch.Next(), kServing);
  ASSERT_TRUE(Eventually([&] { return server.Metric("attnd_receive_used_bytes") > 0; }));
  const auto begin = std::chrono::steady_clock::now();
  server.Destroy();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_FALSE(open.Finish().ok());
}

TEST(LifeTest, ALostDeviceEndsItsBatchTheQueueAndTheService) {
  auto device = std::make_unique<GatedDevice>();
  GatedDevice& gate = *device;
  std::promise<absl::Status> lost;
  TestServer server(TestOptions(), std::move(device),
                    [&](const absl::Status& status) { lost.set_value(status); });
  Watch watch(server, "");
  EXPECT_EQ(watch.Next(), kServing);
  const v1::ComputeRequest request = MakeRequest({});
  gate.Hold();
  const auto running = server.Begin(request);
  gate.WaitUntilHeld();
  const auto queued = server.Begin(request);
  ASSERT_TRUE(Eventually([&] { return server.Metric("attnd_queue_requests") == 1; }));
  gate.FailWith(absl::InternalError("the device fell off the bus"));
  gate.Release();

  const Outcome failed = running->Wait();
  EXPECT_EQ(failed.code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(failed.status.error_message(), HasSubstr("fell off the bus"));
  EXPECT_EQ(failed.Trailer("attnd-version"), ATTND_VERSION);
  EXPECT_EQ(queued->Wait().code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(lost.get_future().get().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(watch.Next(), kNotServing);
  EXPECT_EQ(server.Get("/readyz"), std::make_pair(503, std::string("faulty\n")));
  EXPECT_EQ(server.Compute(request).code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(server->Drain());
}

// Runs, and leaves the answer as it was.
class IdleDevice final : public server::Device {
 public:
  const server::DeviceDescription& Describe() const override { return description_; }
  absl::Status Supports(const kernels::AttentionProblem&) const override {
    return absl::OkStatus();
  }
  absl::Status Begin(server::Stage, server::RunningBatch&) override { return absl::OkStatus(); }

 private:
  server::DeviceDescription description_;
};

TEST(LifeTest, ADeviceThatComputesWronglyIsNotServed) {
  server::Server::Devices devices;
  devices.push_back(std::make_unique<IdleDevice>());
  const auto server = server::Server::Start(TestOptions(), std::move(devices));
  EXPECT_EQ(server.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("computes wrongly"));
}

TEST(LifeTest, SeveralDevicesServeTogether) {
  server::Server::Devices devices;
  std::vector<GatedDevice*> gates;
  for (int i = 0; i < 2; ++i) {
    auto device = std::make_unique<GatedDevice>("cpu_portable");
    gates.push_back(device.get());
    devices.push_back(std::move(device));
  }
  const auto server = server::Server::Start(TestOptions(), std::move(devices));
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ((*server)->devices().size(), 2u);
  const auto channel = Connect("127.0.0.1:" + std::to_string((*server)->port()));
  const v1::ComputeRequest request = MakeRequest({});
  // The first holds one, so the second gets the next.
  gates[0]->Hold();
  PendingCall held(channel, request.SerializeAsString());
  gates[0]->WaitUntilHeld();
  PendingCall passes(channel, request.SerializeAsString());
  EXPECT_TRUE(IsRight(passes.Wait(), request));
  EXPECT_FALSE(held.IsDone());
  gates[0]->Release();
  EXPECT_TRUE(IsRight(held.Wait(), request));
}

TEST(LifeTest, S43ATakenPortIsRefused) {
  TestServer first;
  server::ServerOptions options = TestOptions();
  options.listen = first.address();
  const auto second = server::Server::Start(options);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(first.address()));

  options = TestOptions();
  options.http_listen = absl::StrCat("127.0.0.1:", first->http_port());
  EXPECT_EQ(server::Server::Start(options).status().code(), absl::StatusCode::kUnavailable);

  const v1::ComputeRequest request = MakeRequest({});
  EXPECT_TRUE(IsRight(first.Compute(request), request));
}

TEST(LifeTest, AUnixSocketIsServedButNeverTakenOver) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/attnd_test_", getpid(), ".sock");
  server::ServerOptions options = TestOptions();
  options.listen = absl::StrCat("unix:", path);
  {
    TestServer server(options);
    EXPECT_EQ(server->port(), 0);
    const v1::ComputeRequest request = MakeRequest({});
    EXPECT_TRUE(IsRight(server.Compute(request), request));
    const auto second = server::Server::Start(options);
    EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(second.status().message()), HasSubstr(path));
    EXPECT_TRUE(IsRight(server.Compute(request), request));
  }
  // What a killed server leaves behind is no obstacle.
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  unlink(path.c_str());
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  close(fd);
  { TestServer server(options); }
  unlink(path.c_str());
  // A file that is none of ours is left alone.
  std::ofstream(path) << "precious";
  EXPECT_EQ(server::Server::Start(options).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::remove(path.c_str()), 0);
}

TEST(LifeTest, HttpCanBeOff) {
  server::ServerOptions options = TestOptions();
  options.http_listen = "";
  TestServer server(options);
  EXPECT_EQ(server->http_port(), 0);
  const v1::ComputeRequest request = MakeRequest({});
  EXPECT_TRUE(IsRight(server.Compute(request), request));
}

}  // namespace
}  // namespace attnd::testing
