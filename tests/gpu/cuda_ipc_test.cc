// Callers' memory on a real GPU: a server in this process, clients in processes of their own
// (cuda_ipc_client). Skipped, saying why, where there is no GPU.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/executor/cuda_runtime.h"
#include "tests/service/harness.h"

namespace attnd::testing {
namespace {

// What a client said, and how it ended.
struct Ended {
  int exit_status = -1;  // 128 + the signal, for one that a signal ended
  std::string output;
};

std::string ClientProgram() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "cuda_ipc_client";
}

class CudaIpcGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<int> gpus = server::CountCudaDevices();
    if (!gpus.ok()) GTEST_SKIP() << gpus.status();
    char name[] = "/tmp/attnd-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    server_.reset();
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  void Start(bool allow_cuda_ipc = true) {
    server::ServerOptions options = TestOptions();
    options.devices = "cuda:0";
    options.max_unary_bytes = int64_t{128} << 20;
    options.receive_bytes = int64_t{512} << 20;
    options.arena_bytes = int64_t{1} << 30;
    options.scheduler.max_queue_bytes = int64_t{1} << 30;
    options.scheduler.max_batch_bytes = int64_t{1} << 30;
    options.max_region_bytes = int64_t{8} << 30;
    options.local_socket = folder_ + "/side.sock";
    options.allow_cuda_ipc = allow_cuda_ipc;
    server_ = std::make_unique<TestServer>(options);
  }

  // Runs one to its end.
  Ended Run(const std::string& kind, const std::string& mode) {
    const std::string command = absl::StrCat("'", ClientProgram(), "' ", server_->address(), " '",
                                             folder_, "/side.sock' ", kind, " ", mode, " 2>&1");
    Ended ended;
    std::FILE* const pipe = popen(command.c_str(), "r");
    EXPECT_NE(pipe, nullptr);
    char piece[256];
    while (std::fgets(piece, sizeof(piece), pipe) != nullptr) ended.output += piece;
    const int status = pclose(pipe);
    ended.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return ended;
  }
  void ExpectFine(const std::string& kind, const std::string& mode) {
    const Ended ended = Run(kind, mode);
    EXPECT_EQ(ended.exit_status, 0) << kind << " " << mode << ": " << ended.output;
    ExpectAllGone();
  }
  void ExpectAllGone() {
    EXPECT_TRUE(Eventually([&] {
      return server_->Metric("attnd_cuda_regions") == 0 &&
             server_->Metric("attnd_cuda_region_bytes") == 0 &&
             server_->Metric("attnd_region_leases") == 0 &&
             server_->Metric("attnd_region_connections") == 0 &&
             server_->Metric("attnd_device_used_bytes") == 0;
    }));
    EXPECT_EQ((*server_)->readiness(), server::Readiness::kReady);
  }

  std::string folder_;
  std::unique_ptr<TestServer> server_;
};

// With either kind of memory.
class CudaIpcKindGpuTest : public CudaIpcGpuTest,
                           public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Each, CudaIpcKindGpuTest, ::testing::Values("malloc", "vmm"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(CudaIpcKindGpuTest, AnswersTheBitsOfUnaryCalls) {
  Start();
  ExpectFine(GetParam(), "bits");
  EXPECT_GT(server_->Metric("attnd_received_bytes_total{transport=\"region\"}"), 0);
}

TEST_P(CudaIpcKindGpuTest, WaitsForTheCallersEvent) {
  Start();
  ExpectFine(GetParam(), "event");
}

TEST_P(CudaIpcKindGpuTest, IsRefusedUnlessAllowed) {
  Start(/*allow_cuda_ipc=*/false);
  ExpectFine(GetParam(), "refused");
}

TEST_P(CudaIpcKindGpuTest, S19MemoryOfAnotherGpuIsRefusedByName) {
  Start();
  ExpectFine(GetParam(), "gpu");
}

TEST_P(CudaIpcKindGpuTest, TheDriversSizeCountsNotTheClients) {
  Start();
  ExpectFine(GetParam(), "size");
}

// The server's own mapping keeps what cuMemCreate made. Of cudaMalloc's that is not promised: such
// clients are trusted not to.
TEST_F(CudaIpcGpuTest, AClientThatDiesInACallHarmsNobody) {
  Start();
  for (int round = 0; round < 5; ++round) {
    const Ended ended = Run("vmm", "die");
    EXPECT_EQ(ended.exit_status, 9) << ended.output;
    ExpectAllGone();
  }
  ExpectFine("vmm", "bits");
}

}  // namespace
}  // namespace attnd::testing
