// What callers offer of a GPU's memory, over a driver that is none.
#include "server/executor/cuda_ipc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <memory>
#include <string>
#include <vector>

#include "server/regions/protocol/unique_fd.h"
#include "tests/fakes/fake_cuda_ipc.h"

namespace attnd::server {
namespace {

using fakes::FakeCudaIpc;
using regions::RegisterCudaFrame;
using regions::UniqueFd;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kBytes = 8192;

class CudaImporterTest : public ::testing::Test {
 protected:
  // Of cudaMalloc, on that GPU.
  RegisterCudaFrame Offer(unsigned char gpu = 1) {
    RegisterCudaFrame offer;
    offer.gpu_uuid = FakeCudaIpc::UuidOf(gpu);
    offer.memory_handle = FakeCudaIpc::Export(memory_.data(), kBytes, gpu);
    return offer;
  }
  // Of cuMemCreate.
  RegisterCudaFrame FileOffer(int64_t size_bytes = kBytes) {
    RegisterCudaFrame offer;
    offer.gpu_uuid = FakeCudaIpc::UuidOf(1);
    offer.size_bytes = size_bytes;
    return offer;
  }
  void ExpectRefused(const RegisterCudaFrame& offer, int fd, const std::string& text) {
    const absl::Status status = importer_.Import(offer, fd).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    EXPECT_EQ(first_->open_count() + second_->open_count(), 0) << "after: " << text;
  }

  std::vector<unsigned char> memory_ = std::vector<unsigned char>(kBytes);
  const UniqueFd fd_{[] {
    const int fd = memfd_create("cuda", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(fd, kBytes), 0);
    return fd;
  }()};
  const std::shared_ptr<FakeCudaIpc> first_ = std::make_shared<FakeCudaIpc>(1);
  const std::shared_ptr<FakeCudaIpc> second_ = std::make_shared<FakeCudaIpc>(2);
  CudaImporter importer_{{{0, "cuda:0", first_}, {3, "cuda:1", second_}}};
};

TEST_F(CudaImporterTest, OpensAHandleOnTheGpuThatHasIt) {
  {
    auto memory = importer_.Import(Offer(2), -1);
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ((*memory)->base(), memory_.data());
    EXPECT_EQ((*memory)->size_bytes(), kBytes);
    EXPECT_EQ((*memory)->device(), 3);
    EXPECT_EQ((*memory)->ready(), nullptr);
    EXPECT_EQ(first_->open_count(), 0);
    EXPECT_EQ(second_->open_count(), 1);
  }
  EXPECT_EQ(second_->open_count(), 0);
}

TEST_F(CudaImporterTest, MapsADescriptorAndOpensTheEvent) {
  RegisterCudaFrame offer = FileOffer();
  int event = 0;
  offer.has_event = 1;
  offer.event_handle = FakeCudaIpc::Export(&event, 0);
  {
    auto memory = importer_.Import(offer, fd_.get());
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ((*memory)->size_bytes(), kBytes);
    EXPECT_EQ((*memory)->device(), 0);
    EXPECT_EQ((*memory)->ready(), &event);
    EXPECT_EQ(first_->open_count(), 2);
  }
  EXPECT_EQ(first_->open_count(), 0);
}

// Triton #6872: a handle of a GPU that the server does not have.
TEST_F(CudaImporterTest, S19MemoryOfAnotherGpuIsRefusedAndBothAreNamed) {
  ExpectRefused(Offer(7), -1,
                "the memory is on GPU-07ab0000-0000-0000-0000-000000000000, which this server does "
                "not serve; it has cuda:0 (GPU-01ab0000-0000-0000-0000-000000000000), cuda:1 (");
}

TEST_F(CudaImporterTest, S19AClientThatNamesTheWrongGpuIsNotBelieved) {
  RegisterCudaFrame offer = Offer(2);
  offer.gpu_uuid = FakeCudaIpc::UuidOf(1);
  ExpectRefused(offer, -1, "the memory is on GPU-02ab0000");
  ExpectRefused(offer, -1, "gpu_uuid says GPU-01ab0000");
}

TEST_F(CudaImporterTest, TheDriversSizeCountsNotTheClients) {
  ExpectRefused(FileOffer(2 * kBytes), fd_.get(), "maps 8192 bytes at most, got 16384");
  ExpectRefused(FileOffer(INT64_MAX), fd_.get(), "maps 8192 bytes at most");
  RegisterCudaFrame offer = Offer();
  offer.size_bytes = kBytes;
  ExpectRefused(offer, -1, "size_bytes is 8192; without a descriptor it must be 0");
}

TEST_F(CudaImporterTest, WhatMakesNoSenseIsRefusedAndNothingStaysOpen) {
  ExpectRefused(FileOffer(0), fd_.get(), "size_bytes is 0; with a descriptor");
  ExpectRefused(FileOffer(-1), fd_.get(), "size_bytes is -1; with a descriptor");
  RegisterCudaFrame offer = Offer();
  offer.memory_handle = {};
  ExpectRefused(offer, -1, "knows no such handle");
  offer = Offer();
  offer.has_event = 2;
  ExpectRefused(offer, -1, "has_event is 2");
  offer.has_event = 1;  // of zeros
  ExpectRefused(offer, -1, "knows no such event");
}

}  // namespace
}  // namespace attnd::server
