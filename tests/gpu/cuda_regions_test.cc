// Memory of callers on a GPU's bus. Skipped, saying why, where there is no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/executor/cuda_memory.h"
#include "server/executor/cuda_runtime.h"
#include "tests/regions/regions.h"

namespace attnd::server {
namespace {

constexpr int64_t kBytes = int64_t{256} << 20;

class CudaRegionsGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<int> gpus = CountCudaDevices();
    if (!gpus.ok()) GTEST_SKIP() << gpus.status();
    cuda_ = *OpenCuda(0);
    stream_ = *cuda_->NewStream();
    device_ = *cuda_->NewDeviceMemory(kBytes);
  }
  void TearDown() override {
    if (cuda_ == nullptr) return;
    cuda_->FreeDeviceMemory(device_);
    cuda_->FreeStream(stream_);
  }

  void Copy(void* to, const void* from) {
    ASSERT_TRUE(cuda_->CopyAsync({{to, 0, from, 0, kBytes, 1}}, stream_).ok());
    ASSERT_TRUE(cuda_->Wait(stream_).ok());
  }
  // The fastest of some.
  double GbPerS(void* to, const void* from) {
    double best = 0;
    for (int i = 0; i < 5; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      Copy(to, from);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      best = std::max(best, 1e-9 * kBytes / took.count());
    }
    return best;
  }

  std::shared_ptr<Cuda> cuda_;
  kernels::Stream stream_ = nullptr;
  void* device_ = nullptr;
};

TEST_F(CudaRegionsGpuTest, TheBusReadsAndWritesARegion) {
  const regions::UniqueFd fd = NewMemfd(kBytes);
  const auto locker = std::make_shared<CudaPageLocker>(cuda_);
  const std::shared_ptr<Region> region = MapUnchecked(fd.get(), kBytes, locker);
  auto* const clients = static_cast<unsigned char*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
  ASSERT_NE(clients, MAP_FAILED);
  for (int64_t i = 0; i < kBytes; ++i)
    clients[i] = static_cast<unsigned char>(i * 2654435761U >> 7);
  auto lease = region->Pin(0, kBytes, Access::kWrite);
  ASSERT_TRUE(lease.ok()) << lease.status();
  Copy(device_, lease->data());
  const std::vector<unsigned char> expected(clients, clients + kBytes);
  std::memset(clients, 0, kBytes);
  Copy(lease->data(), device_);
  EXPECT_EQ(std::memcmp(clients, expected.data(), kBytes), 0);
  EXPECT_TRUE(lease->status().ok());

  void* const pinned = *cuda_->NewPinnedMemory(kBytes);
  std::memset(pinned, 1, kBytes);
  const std::pair<const char*, double> rates[] = {{"region up", GbPerS(device_, lease->data())},
                                                  {"region down", GbPerS(lease->data(), device_)},
                                                  {"pinned up", GbPerS(device_, pinned)},
                                                  {"pinned down", GbPerS(pinned, device_)}};
  for (const auto& [what, rate] : rates) {
    RecordProperty(what, std::to_string(rate) + " GB/s");
    GTEST_LOG_(INFO) << what << ": " << rate << " GB/s";
  }
  // Memory that is not pinned moves at a fraction of this: a third, where it was seen.
  EXPECT_GT(rates[0].second, rates[2].second / 2);
  EXPECT_GT(rates[1].second, rates[3].second / 2);
  cuda_->FreePinnedMemory(pinned);
  munmap(clients, kBytes);
}

TEST_F(CudaRegionsGpuTest, WhatCannotBePinnedIsRefusedAndTheDeviceGoesOn) {
  CudaPageLocker locker(cuda_);
  // Nothing is mapped there.
  EXPECT_EQ(locker.Lock(reinterpret_cast<void*>(kPage), kPage).code(),
            absl::StatusCode::kResourceExhausted);
  std::vector<unsigned char> memory(kBytes, 7);
  Copy(device_, memory.data());
  memory.assign(kBytes, 0);
  Copy(memory.data(), device_);
  EXPECT_EQ(memory[kBytes - 1], 7);
}

}  // namespace
}  // namespace attnd::server
