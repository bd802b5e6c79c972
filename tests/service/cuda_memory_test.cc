// Callers' memory on a GPU, over a GPU that is host memory: the bits of inline tensors, no copy,
// and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "kernels/registry.h"
#include "server/executor/cuda_device.h"
#include "server/regions/protocol/unique_fd.h"
#include "tests/fakes/fake_cuda.h"
#include "tests/fakes/fake_cuda_ipc.h"
#include "tests/service/harness.h"

namespace attnd::testing {
namespace {

using fakes::FakeCudaIpc;
using ::testing::HasSubstr;

constexpr int64_t kMemoryBytes = int64_t{1} << 20;
const std::vector<int64_t> kShape = {1, 2, 24, 20};
constexpr absl::Duration kTimeout = absl::Seconds(30);

// What a process has of cuMemCreate: exported, and mapped in its own place.
class Allocation {
 public:
  Allocation() : fd_(memfd_create("cuda", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(fd_.get(), kMemoryBytes), 0);
    base_ = mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    EXPECT_NE(base_, MAP_FAILED);
  }
  ~Allocation() { munmap(base_, kMemoryBytes); }
  Allocation(const Allocation&) = delete;

  CudaMemory exported() const {
    CudaMemory memory;
    memory.base = base_;
    memory.size_bytes = kMemoryBytes;
    memory.gpu_uuid = FakeCudaIpc::UuidOf(1);
    memory.fd = fd_.get();
    return memory;
  }

 private:
  const regions::UniqueFd fd_;
  void* base_ = nullptr;
};

class CudaMemoryTest : public ::testing::Test {
 protected:
  CudaMemoryTest() {
    char name[] = "/tmp/attnd-test-XXXXXX";
    EXPECT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  ~CudaMemoryTest() override {
    client_.reset();
    server_.reset();
    EXPECT_EQ(ipc_->open_count(), 0);
    std::filesystem::remove_all(folder_);
  }

  void Start(bool allow_cuda_ipc = true) {
    server::ServerOptions options = TestOptions();
    options.local_socket = folder_ + "/side.sock";
    options.allow_cuda_ipc = allow_cuda_ipc;
    std::vector<std::unique_ptr<kernels::Backend>> backends;
    for (int i = 0; i < server::kRunStreams; ++i) {
      backends.push_back(std::move(kernels::ChooseBackend("cpu_portable", {1})->backend));
    }
    server::DeviceDescription description;
    description.id = "cuda:0";
    server::CudaDeviceOptions device_options;
    device_options.ipc = ipc_;
    auto device = server::MakeCudaDevice(cuda_, std::move(backends), description, device_options);
    ASSERT_TRUE(device.ok()) << device.status();
    server_ = std::make_unique<TestServer>(options, *std::move(device));
    ClientOptions client_options;
    client_options.local_socket = options.local_socket;
    client_ = *Client::Connect(server_->address(), client_options);
  }

  std::unique_ptr<LocalRegion> Share(const CudaMemory& memory) {
    auto region = client_->ShareCudaMemory(memory, kTimeout);
    EXPECT_TRUE(region.ok()) << region.status();
    return region.ok() ? *std::move(region) : nullptr;
  }
  void ExpectRefused(const CudaMemory& memory, absl::StatusCode code, const std::string& text) {
    const absl::Status status = client_->ShareCudaMemory(memory, kTimeout).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }

  // Q, K and V in ordinary memory.
  AttentionRequest Inline() const {
    AttentionRequest request;
    request.q = {DType::kFloat32, kShape, values_.q().data()};
    request.k = {DType::kFloat32, kShape, values_.k().data()};
    request.v = {DType::kFloat32, kShape, values_.v().data()};
    request.causal = Causal::kBottomRight;
    request.want_lse = true;
    request.transport = Transport::kUnary;
    return request;
  }
  // All five in the region.
  AttentionRequest Placed(LocalRegion& region) const {
    AttentionRequest request = Inline();
    request.transport = Transport::kAuto;
    for (TensorView* view : {&request.q, &request.k, &request.v}) {
      const auto tensor = NewTensor(region, view->dtype, view->shape);
      EXPECT_TRUE(tensor.ok()) << tensor.status();
      std::memcpy(tensor->data, view->data, static_cast<size_t>(view->size_bytes()));
      *view = tensor->input();
    }
    request.o_place = NewTensor(region, DType::kFloat32, kShape)->output();
    request.lse_place = NewTensor(region, DType::kFloat32, {1, 2, 24})->output();
    return request;
  }
  // The bits of a unary call are where the request wants them.
  void ExpectSame(const AttentionRequest& placed) {
    const auto expected = client_->Attention(Inline());
    ASSERT_TRUE(expected.ok()) << expected.status();
    const auto result = client_->Attention(placed);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->transport, Transport::kRegion);
    EXPECT_EQ(std::memcmp(placed.o_place->data, expected->o.bytes.data(), expected->o.bytes.size()),
              0);
    EXPECT_EQ(std::memcmp(placed.lse_place->data, expected->lse->bytes.data(),
                          expected->lse->bytes.size()),
              0);
  }
  double Metric(const std::string& series) const { return server_->Metric(series); }

  std::string folder_;
  const std::shared_ptr<fakes::FakeCuda> cuda_ = std::make_shared<fakes::FakeCuda>();
  const std::shared_ptr<FakeCudaIpc> ipc_ = std::make_shared<FakeCudaIpc>();
  const v1::ComputeRequest values_ =
      MakeRequest({.q_heads = 2, .kv_heads = 2, .q_len = 24, .kv_len = 24, .head_dim = 20});
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(CudaMemoryTest, AnswersTheBitsOfInlineTensorsAndCopiesNothing) {
  Start();
  EXPECT_TRUE(client_->GetServerInfo(kTimeout)->takes_cuda_memory);
  const Allocation allocation;
  const auto region = Share(allocation.exported());
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(Metric("attnd_cuda_regions"), 1);
  EXPECT_EQ(Metric("attnd_cuda_region_bytes"), kMemoryBytes);
  const AttentionRequest placed = Placed(*region);
  ExpectSame(placed);
  const int64_t copies = cuda_->copies();
  const double read_bytes = Metric("attnd_received_bytes_total{transport=\"region\"}");
  ASSERT_TRUE(client_->Attention(placed).ok());
  EXPECT_EQ(cuda_->copies(), copies);
  EXPECT_EQ(Metric("attnd_received_bytes_total{transport=\"region\"}") - read_bytes,
            3 * placed.q.size_bytes());
  EXPECT_EQ(Metric("attnd_region_leases"), 0);
}

TEST_F(CudaMemoryTest, AHandleOfCudaMallocWillDoAndItsEventIsWaitedFor) {
  Start();
  std::vector<unsigned char> memory(kMemoryBytes);
  int event = 0;
  CudaMemory exported;
  exported.base = memory.data();
  exported.size_bytes = kMemoryBytes;
  exported.gpu_uuid = FakeCudaIpc::UuidOf(1);
  exported.handle = FakeCudaIpc::Export(memory.data(), kMemoryBytes);
  exported.event = FakeCudaIpc::Export(&event, 0);
  const auto region = Share(exported);
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(ipc_->open_count(), 2);
  ExpectSame(Placed(*region));
  EXPECT_EQ(cuda_->stream_waits(&event), 1);
  // It is a region already.
  ExpectRefused(exported, absl::StatusCode::kAlreadyExists, "is a region already");
  EXPECT_EQ(ipc_->open_count(), 2);
}

// Its memory may be freed then.
TEST_F(CudaMemoryTest, ARegionIsGoneOnlyWhenTheServerHasLetGo) {
  Start();
  const Allocation allocation;
  for (int round = 0; round < 20; ++round) {
    auto region = Share(allocation.exported());
    ASSERT_EQ(ipc_->open_count(), 1);
    region.reset();
    ASSERT_EQ(ipc_->open_count(), 0);
  }
}

TEST_F(CudaMemoryTest, TensorsElsewhereAreCopiedToItsSide) {
  Start();
  const Allocation allocation;
  const auto region = Share(allocation.exported());
  ASSERT_NE(region, nullptr);
  AttentionRequest placed = Placed(*region);
  const AttentionRequest elsewhere = Inline();
  placed.k = elsewhere.k;
  placed.v = elsewhere.v;
  ExpectSame(placed);
  const auto host = client_->NewRegion(kMemoryBytes, kTimeout);
  ASSERT_TRUE(host.ok()) << host.status();
  AttentionRequest mixed = Placed(*region);
  mixed.o_place = NewTensor(**host, DType::kFloat32, kShape)->output();
  ExpectSame(mixed);
}

TEST_F(CudaMemoryTest, IsRefusedUnlessAllowed) {
  Start(/*allow_cuda_ipc=*/false);
  EXPECT_FALSE(client_->GetServerInfo(kTimeout)->takes_cuda_memory);
  const Allocation allocation;
  ExpectRefused(allocation.exported(), absl::StatusCode::kPermissionDenied, "--allow_cuda_ipc");
  EXPECT_EQ(Metric("attnd_region_refusals_total{reason=\"cuda\"}"), 1);
  EXPECT_EQ(ipc_->open_count(), 0);
}

TEST_F(CudaMemoryTest, S19MemoryOfAnotherGpuIsRefusedByName) {
  Start();
  const Allocation allocation;
  CudaMemory exported = allocation.exported();
  exported.gpu_uuid = FakeCudaIpc::UuidOf(9);
  ExpectRefused(exported, absl::StatusCode::kInvalidArgument, "GPU-09ab0000");
  ExpectRefused(exported, absl::StatusCode::kInvalidArgument, "it has cuda:0 (GPU-01ab0000");
  ExpectSame(Placed(*Share(allocation.exported())));
}

// S16 and the rules of leases, as for any region.
TEST_F(CudaMemoryTest, RangesAreCheckedAgainstWhatTheDriverSays) {
  Start();
  const Allocation allocation;
  CudaMemory exported = allocation.exported();
  exported.size_bytes = 2 * kMemoryBytes;  // of which half is there
  ExpectRefused(exported, absl::StatusCode::kInvalidArgument, "the driver maps 1048576 bytes");
  const auto region = Share(allocation.exported());
  ASSERT_NE(region, nullptr);
  AttentionRequest request = Placed(*region);
  request.o_place->data = const_cast<void*>(request.q.data);
  EXPECT_THAT(std::string(client_->Attention(request).status().message()), HasSubstr("overlap"));
  request.o_place->data = region->bytes().data() + kMemoryBytes - 4;
  const absl::Status past = client_->Attention(request).status();
  EXPECT_EQ(past.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(past.message()), HasSubstr("do not lie in a region of 1048576 bytes"));
  EXPECT_EQ(Metric("attnd_region_leases"), 0);
}

// The memory stays mapped as long as a call uses it.
TEST_F(CudaMemoryTest, S14ARegionThatEndsDuringACallGoesAfterwards) {
  Start();
  const Allocation allocation;
  auto region = Share(allocation.exported());
  ASSERT_NE(region, nullptr);
  const AttentionRequest placed = Placed(*region);
  const auto expected = client_->Attention(Inline());
  ASSERT_TRUE(expected.ok()) << expected.status();
  cuda_->Hold();
  std::promise<absl::StatusOr<AttentionResult>> done;
  const auto call = client_->AttentionAsync(
      placed,
      [&done](absl::StatusOr<AttentionResult> result) { done.set_value(std::move(result)); });
  ASSERT_TRUE(Eventually([&] { return Metric("attnd_region_leases") == 5; }));
  region.reset();
  ASSERT_TRUE(Eventually([&] { return Metric("attnd_region_connections") == 0; }));
  EXPECT_EQ(ipc_->open_count(), 1);
  cuda_->Release();
  const auto result = done.get_future().get();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(std::memcmp(placed.o_place->data, expected->o.bytes.data(), expected->o.bytes.size()),
            0);
  EXPECT_TRUE(Eventually([&] { return ipc_->open_count() == 0; }));
  EXPECT_EQ(Metric("attnd_cuda_regions"), 0);
  EXPECT_EQ(Metric("attnd_cuda_region_bytes"), 0);
}

}  // namespace
}  // namespace attnd::testing
