// Shared memory by name through a whole server: registered, used by ModelInfer, taken away, abused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/regions/test_object.h"
#include "tests/service/kserve_calls.h"
#include "tests/wire/kserve_cases.h"

namespace attnd::testing {
namespace {

using inference::GRPCInferenceService;
using inference::ModelInferRequest;
using inference::ModelInferResponse;
using server::TestObject;
using ::testing::HasSubstr;

using Channel = std::shared_ptr<grpc::Channel>;
using Stub = GRPCInferenceService::Stub;

// A client on one connection.
class Client {
 public:
  explicit Client(Channel channel, std::string tenant = "")
      : stub_(GRPCInferenceService::NewStub(channel)), tenant_(std::move(tenant)) {}

  template <typename Method, typename Request, typename Response>
  grpc::Status Call(Method method, const Request& request, Response& response) const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    if (!tenant_.empty()) context.AddMetadata("attnd-tenant", tenant_);
    const grpc::Status status = (stub_.get()->*method)(&context, request, &response);
    EXPECT_EQ(context.GetServerTrailingMetadata().count("attnd-version"), 1u);
    return status;
  }
  grpc::Status Register(const std::string& name, const TestObject& object, uint64_t size_bytes,
                        uint64_t offset_bytes = 0) const {
    inference::SystemSharedMemoryRegisterRequest request;
    inference::SystemSharedMemoryRegisterResponse response;
    request.set_name(name);
    request.set_key(object.key());
    request.set_offset(offset_bytes);
    request.set_byte_size(size_bytes);
    return Call(&Stub::SystemSharedMemoryRegister, request, response);
  }
  grpc::Status Unregister(const std::string& name = "") const {
    inference::SystemSharedMemoryUnregisterRequest request;
    inference::SystemSharedMemoryUnregisterResponse response;
    request.set_name(name);
    return Call(&Stub::SystemSharedMemoryUnregister, request, response);
  }
  std::vector<std::string> Names() const {
    inference::SystemSharedMemoryStatusResponse response;
    const auto status = Call(&Stub::SystemSharedMemoryStatus,
                             inference::SystemSharedMemoryStatusRequest(), response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::vector<std::string> names;
    for (const auto& [name, region] : response.regions()) names.push_back(name);
    return names;
  }
  grpc::Status Infer(const ModelInferRequest& request, ModelInferResponse& response) const {
    return Call(&Stub::ModelInfer, request, response);
  }

 private:
  const std::unique_ptr<Stub> stub_;
  const std::string tenant_;
};

void Put(google::protobuf::Map<std::string, inference::InferParameter>& parameters,
         const std::string& region, int64_t offset_bytes, int64_t size_bytes) {
  parameters["shared_memory_region"].set_string_param(region);
  parameters["shared_memory_byte_size"].set_int64_param(size_bytes);
  if (offset_bytes != 0) parameters["shared_memory_offset"].set_int64_param(offset_bytes);
}

void Write(const TestObject& object, int64_t offset_bytes, const std::string& bytes) {
  ASSERT_EQ(pwrite(object.fd(), bytes.data(), bytes.size(), offset_bytes),
            static_cast<ssize_t>(bytes.size()));
}

// Q, K and V one after the other at the region's beginning; the object is large enough.
ModelInferRequest WithInputsIn(const TestObject& object, const std::string& region,
                               const v1::ComputeRequest& request) {
  ModelInferRequest message = InferRequestOf(request);
  message.clear_raw_input_contents();
  int64_t offset_bytes = 0;
  const std::string* const payloads[] = {&request.q(), &request.k(), &request.v()};
  for (int i = 0; i < 3; ++i) {
    Write(object, offset_bytes, *payloads[i]);
    const auto bytes = static_cast<int64_t>(payloads[i]->size());
    Put(*message.mutable_inputs(i)->mutable_parameters(), region, offset_bytes, bytes);
    offset_bytes += bytes;
  }
  return message;
}

void WantOIn(const std::string& region, int64_t size_bytes, ModelInferRequest& message) {
  message.clear_outputs();
  auto& output = *message.add_outputs();
  output.set_name("O");
  Put(*output.mutable_parameters(), region, 0, size_bytes);
}

class KserveMemory : public ::testing::Test {
 protected:
  static server::ServerOptions Options() {
    server::ServerOptions options = TestOptions();
    options.allow_shm_names = true;
    options.shm_name_prefix = "attnd-test-";
    return options;
  }
  KserveMemory()
      : device_(new GatedDevice),
        server_(Options(), std::unique_ptr<server::Device>(device_)),
        client_(server_.channel()) {}

  bool AllGone() const {
    return server_.Metric("attnd_pool_used_bytes") == 0 &&
           server_.Metric("attnd_requests_received_total") == static_cast<double>(finished());
  }
  int64_t finished() const { return const_cast<TestServer&>(server_)->metrics().finished(); }

  GatedDevice* const device_;  // the server's
  TestServer server_;
  const Client client_;
};

TEST_F(KserveMemory, TheBitsOfCompute) {
  const TestObject in("in", 1 << 20), out("out", 1 << 20);
  ASSERT_TRUE(client_.Register("in", in, 1 << 20).ok());
  ASSERT_TRUE(client_.Register("out", out, 1 << 20).ok());
  EXPECT_EQ(server_.Metric("attnd_shm_names"), 2);
  EXPECT_EQ(server_.Metric("attnd_shm_bytes"), 2 << 20);
  for (const v1::DataType dtype :
       {v1::DATA_TYPE_FLOAT32, v1::DATA_TYPE_FLOAT16, v1::DATA_TYPE_BFLOAT16}) {
    const v1::ComputeRequest request = MakeRequest({2, 6, 2, 33, 65, 64, dtype});
    const std::string o = server_.Compute(request).response.o();
    ModelInferRequest message = WithInputsIn(in, "in", request);
    WantOIn("out", 1 << 20, message);
    ModelInferResponse response;
    const grpc::Status status = client_.Infer(message, response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(out.Read(0, static_cast<int64_t>(o.size())), o);
    EXPECT_EQ(response.outputs(0).parameters().at("shared_memory_byte_size").int64_param(),
              static_cast<int64_t>(o.size()));
  }
  ASSERT_TRUE(client_.Unregister().ok());
  EXPECT_EQ(server_.Metric("attnd_shm_names"), 0);
}

TEST_F(KserveMemory, BytesAreCountedByTheWayTheyTook) {
  const TestObject in("in", 1 << 16), out("out", 1 << 16);
  ASSERT_TRUE(client_.Register("in", in, 1 << 16).ok());
  ASSERT_TRUE(client_.Register("out", out, 1 << 16).ok());
  const v1::ComputeRequest request = MakeRequest({});
  ModelInferRequest message = WithInputsIn(in, "in", request);
  WantOIn("out", 1 << 16, message);
  // K in the message.
  message.mutable_inputs(1)->clear_parameters();
  message.add_raw_input_contents(request.k());
  const auto bytes = [&](const char* way, const char* transport) {
    return server_.Metric(
        absl::StrCat("attnd_", way, "_bytes_total{transport=\"", transport, "\"}"));
  };
  const double received = bytes("received", "unary"), sent = bytes("sent", "unary");
  const double read = bytes("received", "region"), written = bytes("sent", "region");
  ModelInferResponse response;
  ASSERT_TRUE(client_.Infer(message, response).ok());
  EXPECT_EQ(bytes("received", "unary") - received, request.k().size());
  EXPECT_EQ(bytes("sent", "unary") - sent, 0);
  EXPECT_EQ(bytes("received", "region") - read, request.q().size() + request.v().size());
  EXPECT_EQ(bytes("sent", "region") - written, request.q().size());
}

// More than gRPC's own thread copies.
TEST_F(KserveMemory, MegabytesAreCopiedElsewhere) {
  const v1::ComputeRequest request =
      MakeRequest({1, 8, 1, 3000, 16, 128, v1::DATA_TYPE_FLOAT16}, 3);
  const auto q_bytes = static_cast<int64_t>(request.q().size());
  ASSERT_GT(q_bytes, 4 << 20);
  const TestObject in("in", 2 * q_bytes), out("out", q_bytes);
  ASSERT_TRUE(client_.Register("in", in, 2 * static_cast<uint64_t>(q_bytes)).ok());
  ASSERT_TRUE(client_.Register("out", out, static_cast<uint64_t>(q_bytes)).ok());
  ModelInferRequest message = WithInputsIn(in, "in", request);
  WantOIn("out", q_bytes, message);
  ModelInferResponse response;
  const grpc::Status status = client_.Infer(message, response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(out.Read(0, q_bytes), server_.Compute(request).response.o());
}

// Together they are more than the memory for payloads, so that one waits for the other.
TEST_F(KserveMemory, CallsWaitForRoom) {
  server::ServerOptions options = Options();
  options.max_unary_bytes = 2 << 20;
  options.arena_bytes = 12 << 20;  // half for payloads
  auto* const device = new GatedDevice;
  const TestServer server(options, std::unique_ptr<server::Device>(device));
  const Client client(server.channel());
  const v1::ComputeRequest request = MakeRequest({1, 8, 1, 2000, 4, 64, v1::DATA_TYPE_FLOAT32});
  const auto q_bytes = static_cast<int64_t>(request.q().size());
  ASSERT_GT(2 * q_bytes, 6 << 20);
  const TestObject in("in", 2 * q_bytes), out("out", 3 * q_bytes);
  ASSERT_TRUE(client.Register("in", in, 2 * static_cast<uint64_t>(q_bytes)).ok());
  ModelInferRequest message = WithInputsIn(in, "in", request);
  device->Hold();
  std::vector<std::unique_ptr<RawStream>> calls;
  for (int64_t i = 0; i < 3; ++i) {
    const std::string name = absl::StrCat("out-", i);
    const auto size_bytes = static_cast<uint64_t>(q_bytes);
    ASSERT_TRUE(client.Register(name, out, size_bytes, i * size_bytes).ok());
    WantOIn(name, q_bytes, message);
    calls.push_back(std::make_unique<RawStream>(server.channel(), kModelInfer));
    ASSERT_TRUE(calls.back()->Write(message.SerializeAsString()));
    calls.back()->WritesDone();
    if (i == 0) device->WaitUntilHeld();
  }
  device->Release();
  for (size_t i = 0; i < calls.size(); ++i) {
    std::string bytes;
    ASSERT_TRUE(calls[i]->Read(&bytes)) << calls[i]->Finish().error_message();
    Outcome outcome;
    outcome.response.set_o(out.Read(static_cast<int64_t>(i) * q_bytes, q_bytes));
    EXPECT_TRUE(IsRight(outcome, request));
  }
}

// Triton#3207.
TEST_F(KserveMemory, S14WhatIsUnregisteredInACallStaysForTheCall) {
  const v1::ComputeRequest request = MakeRequest({});
  const std::string o = server_.Compute(request).response.o();
  const TestObject in("in", 1 << 16), out("out", 1 << 16);
  ASSERT_TRUE(client_.Register("in", in, 1 << 16).ok());
  ASSERT_TRUE(client_.Register("out", out, 1 << 16).ok());
  ModelInferRequest message = WithInputsIn(in, "in", request);
  WantOIn("out", 1 << 16, message);
  device_->Hold();
  RawStream infer(server_.channel(), kModelInfer);
  ASSERT_TRUE(infer.Write(message.SerializeAsString()));
  infer.WritesDone();
  device_->WaitUntilHeld();
  ASSERT_TRUE(client_.Unregister().ok());
  out.Remove();
  EXPECT_EQ(server_.Metric("attnd_shm_names"), 0);
  device_->Release();
  std::string bytes;
  EXPECT_TRUE(infer.Read(&bytes));
  EXPECT_TRUE(infer.Finish().ok());
  EXPECT_EQ(out.Read(0, static_cast<int64_t>(o.size())), o);
  ModelInferResponse response;
  EXPECT_EQ(client_.Infer(message, response).error_code(), grpc::StatusCode::NOT_FOUND);
}

// CVE-2025-23319 and its like: the object changes while the call uses it.
TEST_F(KserveMemory, S54AnOutputThatShrinksInACallFailsThatCallAlone) {
  const v1::ComputeRequest request = MakeRequest({});
  const TestObject in("in", 1 << 16), out("out", 1 << 16);
  ASSERT_TRUE(client_.Register("in", in, 1 << 16).ok());
  ASSERT_TRUE(client_.Register("out", out, 1 << 16).ok());
  ModelInferRequest message = WithInputsIn(in, "in", request);
  WantOIn("out", 1 << 16, message);
  device_->Hold();
  RawStream infer(server_.channel(), kModelInfer);
  ASSERT_TRUE(infer.Write(message.SerializeAsString()));
  infer.WritesDone();
  device_->WaitUntilHeld();
  out.Resize(8);
  device_->Release();
  std::string bytes;
  EXPECT_FALSE(infer.Read(&bytes));
  const grpc::Status status = infer.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("output O"));
  EXPECT_EQ(out.Read(0, 8), std::string(8, '\0'));
  out.Resize(1 << 16);
  ModelInferResponse response;
  EXPECT_TRUE(client_.Infer(message, response).ok());
  EXPECT_TRUE(Eventually([&] { return AllGone(); }));
  EXPECT_EQ(server_.Metric("attnd_requests_finished_total{code=\"DATA_LOSS\",stage=\"download\"}"),
            1);
  const auto stub = inference::GRPCInferenceService::NewStub(server_.channel());
  grpc::ClientContext context;
  inference::ModelStatisticsResponse statistics;
  ASSERT_TRUE(stub->ModelStatistics(&context, {}, &statistics).ok());
  const inference::InferStatistics& stats = statistics.model_stats(0).inference_stats();
  EXPECT_EQ(stats.success().count(), 1u) << "one was answered";
  EXPECT_EQ(stats.fail().count(), 1u);
}

TEST_F(KserveMemory, AStreamToo) {
  const v1::ComputeRequest request = MakeRequest({1, 8, 1, 300, 16, 128, v1::DATA_TYPE_FLOAT16}, 3);
  const auto o_bytes = static_cast<int64_t>(request.q().size());
  ASSERT_GT(o_bytes, 64 << 10);
  const TestObject in("in", 2 << 20), out("out", 2 << 20), cut("cut", 1 << 20);
  ASSERT_TRUE(client_.Register("in", in, 2 << 20).ok());
  ASSERT_TRUE(client_.Register("cut", cut, 1 << 20).ok());
  const ModelInferRequest inputs = WithInputsIn(in, "in", request);
  device_->Hold();
  RawStream stream(server_.channel(), kModelStreamInfer);
  for (const char* name : {"first", "cut", "last"}) {
    ModelInferRequest message = inputs;
    if (name != std::string("cut")) {
      const uint64_t offset_bytes = name == std::string("last") ? 1 << 20 : 0;
      ASSERT_TRUE(client_.Register(name, out, 1 << 20, offset_bytes).ok());
    }
    WantOIn(name, 1 << 20, message);
    message.set_id(name);
    ASSERT_TRUE(stream.Write(message.SerializeAsString()));
  }
  device_->WaitUntilHeld();
  ASSERT_TRUE(Eventually([&] { return server_.Metric("attnd_requests_received_total") == 3; }));
  cut.Resize(0);
  device_->Release();
  const std::string o = server_.Compute(request).response.o();
  for (const char* name : {"first", "cut", "last"}) {
    std::string bytes;
    ASSERT_TRUE(stream.Read(&bytes));
    inference::ModelStreamInferResponse response;
    ASSERT_TRUE(response.ParseFromString(bytes));
    EXPECT_EQ(response.infer_response().id(), name);
    const bool is_cut = name == std::string("cut");
    EXPECT_EQ(response.error_message().empty(), !is_cut) << response.error_message();
    EXPECT_THAT(response.error_message(), HasSubstr(is_cut ? "output O" : ""));
  }
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_TRUE(out.Read(0, o_bytes) == o);
  EXPECT_TRUE(out.Read(1 << 20, o_bytes) == o);
  EXPECT_TRUE(Eventually([&] { return AllGone(); }));
}

// Triton#3428: by another connection of one user, which Triton's own examples begin with.
TEST_F(KserveMemory, S18UnregisteringAllLeavesAnotherConnectionsAlone) {
  const TestObject object("mine");
  ASSERT_TRUE(client_.Register("mine", object, 4096).ok());
  {
    const Client other(server_.NewChannel());
    ASSERT_TRUE(other.Register("other", object, 4096).ok());
    EXPECT_THAT(other.Names(), ::testing::UnorderedElementsAre("mine", "other"));
    ASSERT_TRUE(other.Unregister().ok());
    EXPECT_THAT(client_.Names(), ::testing::ElementsAre("mine"));
    ASSERT_TRUE(other.Register("left", object, 4096).ok());
  }
  // What a client that has gone left behind goes with the next one's cleaning up.
  EXPECT_TRUE(Eventually([&] {
    EXPECT_TRUE(Client(server_.NewChannel()).Unregister().ok());
    return client_.Names() == std::vector<std::string>{"mine"};
  }));
}

TEST_F(KserveMemory, S18AnotherTenantSeesNothing) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/attnd_kserve_tenants_", getpid());
  std::ofstream(path) << "a\nb\n";
  server::ServerOptions options = Options();
  options.tenants = path;
  options.tenant_metadata = "attnd-tenant";
  const TestServer server(options);
  const Client a(server.channel(), "a"), b(server.channel(), "b");
  const v1::ComputeRequest request = MakeRequest({});
  const TestObject in("in", 1 << 16);
  ASSERT_TRUE(a.Register("in", in, 1 << 16).ok());
  EXPECT_TRUE(b.Names().empty());
  ASSERT_TRUE(b.Unregister("in").ok());
  ASSERT_TRUE(b.Unregister().ok());
  const ModelInferRequest message = WithInputsIn(in, "in", request);
  ModelInferResponse response;
  EXPECT_EQ(b.Infer(message, response).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_TRUE(a.Infer(message, response).ok());
  EXPECT_TRUE(b.Register("in", in, 8).ok());
  std::filesystem::remove(path);
}

TEST_F(KserveMemory, OnAUnixSocketToo) {
  const std::string path = absl::StrCat("/tmp/attnd-kserve-", getpid(), ".sock");
  server::ServerOptions options = Options();
  options.listen = "unix:" + path;
  const TestServer server(options);
  const Client client(Connect("unix:" + path));
  const v1::ComputeRequest request = MakeRequest({});
  const TestObject in("in", 1 << 16);
  ASSERT_TRUE(client.Register("in", in, 1 << 16).ok());
  ModelInferResponse response;
  const grpc::Status status = client.Infer(WithInputsIn(in, "in", request), response);
  EXPECT_TRUE(IsRight(AsCompute(status, response), request));
}

TEST_F(KserveMemory, WhatNoMemoryCanHoldIsRefusedForGood) {
  v1::ComputeRequest request = MakeRequest({});
  const TestObject in("in", int64_t{1} << 30);
  ASSERT_TRUE(client_.Register("in", in, 1 << 30).ok());
  ModelInferRequest message = WithInputsIn(in, "in", request);
  message.mutable_inputs(0)->set_shape(2, (128 << 20) / (2 * 16 * 4));
  Put(*message.mutable_inputs(0)->mutable_parameters(), "in", 0, 128 << 20);
  ModelInferResponse response;
  const grpc::Status status = client_.Infer(message, response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("134"));
}

TEST_F(KserveMemory, WithoutTheFlagThereIsNone) {
  const TestServer server;
  const Client client(server.channel());
  const TestObject object("off");
  const grpc::Status status = client.Register("x", object, 8);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--allow_shm_names"));
  EXPECT_TRUE(client.Names().empty());
  EXPECT_TRUE(client.Unregister().ok());
}

TEST_F(KserveMemory, CudaMemoryIsRefusedWithWhatToUse) {
  inference::CudaSharedMemoryRegisterRequest request;
  inference::CudaSharedMemoryRegisterResponse response;
  const grpc::Status status = client_.Call(&Stub::CudaSharedMemoryRegister, request, response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--allow_cuda_ipc"));
  inference::CudaSharedMemoryStatusResponse none;
  EXPECT_TRUE(
      client_.Call(&Stub::CudaSharedMemoryStatus, inference::CudaSharedMemoryStatusRequest(), none)
          .ok());
  EXPECT_EQ(none.regions_size(), 0);
  inference::CudaSharedMemoryUnregisterResponse gone;
  EXPECT_TRUE(client_
                  .Call(&Stub::CudaSharedMemoryUnregister,
                        inference::CudaSharedMemoryUnregisterRequest(), gone)
                  .ok());
}

}  // namespace
}  // namespace attnd::testing
