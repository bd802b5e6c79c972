// A server with a side socket, and requests whose tensors lie in a region of it.
#ifndef ATTND_TESTS_SERVICE_REGION_FIXTURE_H_
#define ATTND_TESTS_SERVICE_REGION_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "client/region.h"
#include "tests/service/harness.h"

namespace attnd::testing {

inline constexpr Shape kMiddling{
    .batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 37, .kv_len = 21, .head_dim = 32};
inline constexpr int64_t kRegionBytes = int64_t{1} << 20;

class RegionTest : public ::testing::Test {
 protected:
  explicit RegionTest(int64_t max_queue_requests = TestOptions().scheduler.max_queue_requests)
      : device_(new GatedDevice),
        server_(Options(max_queue_requests), std::unique_ptr<server::Device>(device_)) {
    v1::GetServerInfoResponse info;
    grpc::ClientContext context;
    EXPECT_TRUE(
        v1::AttentionService::NewStub(server_.channel())->GetServerInfo(&context, {}, &info).ok());
    instance_id_ = info.instance_id();
    region_ = NewRegion();
  }

  server::ServerOptions Options(int64_t max_queue_requests) const {
    server::ServerOptions options = TestOptions();
    options.scheduler.max_queue_requests = max_queue_requests;
    options.local_socket = folder_ / "side.sock";
    options.max_region_bytes = 16 * kRegionBytes;
    return options;
  }

  std::unique_ptr<LocalRegion> NewRegion(int64_t size_bytes = kRegionBytes) const {
    auto region = LocalRegion::Create({.socket_path = folder_ / "side.sock",
                                       .instance_id = instance_id_,
                                       .size_bytes = size_bytes});
    EXPECT_TRUE(region.ok()) << region.status();
    return region.ok() ? *std::move(region) : nullptr;
  }

  static std::string Handle(const LocalRegion& region) {
    return {reinterpret_cast<const char*>(region.handle().data()), region.handle().size()};
  }

  // Moves the payload to this place of the region.
  void Put(int64_t offset_bytes, v1::TensorSpec* spec, std::string* bytes) {
    std::memcpy(region_->bytes().data() + offset_bytes, bytes->data(), bytes->size());
    Name(offset_bytes, spec->mutable_region());
    bytes->clear();
  }
  void Name(int64_t offset_bytes, v1::RegionRange* range) const {
    range->set_handle(Handle(*region_));
    range->set_offset_bytes(offset_bytes);
  }
  // All five tensors in the region, one after the other.
  v1::ComputeRequest InRegion(v1::ComputeRequest request) {
    v1::ComputeHeader* const header = request.mutable_header();
    Put(kQ, header->mutable_q(), request.mutable_q());
    Put(kK, header->mutable_k(), request.mutable_k());
    Put(kV, header->mutable_v(), request.mutable_v());
    Name(kO, header->mutable_o_destination()->mutable_region());
    if (header->want_lse()) Name(kLse, header->mutable_lse_destination()->mutable_region());
    return request;
  }
  std::string Bytes(int64_t offset_bytes, size_t size_bytes) const {
    const auto* const data = region_->bytes().data() + offset_bytes;
    return {reinterpret_cast<const char*>(data), size_bytes};
  }

  // Of one that named all five.
  void ExpectInRegion(const v1::ComputeResponse& inlined) const {
    EXPECT_EQ(Bytes(kO, inlined.o().size()), inlined.o());
    EXPECT_EQ(Bytes(kLse, inlined.lse().size()), inlined.lse());
  }

  ::testing::AssertionResult IsIdle() {
    return Eventually([&] {
      return server_->metrics().received() == server_->metrics().finished() &&
             server_.Metric("attnd_pool_used_bytes") == 0 &&
             server_.Metric("attnd_region_leases") == 0;
    });
  }
  void ExpectRefused(const v1::ComputeRequest& request, grpc::StatusCode code,
                     const std::string& text) {
    const Outcome outcome = server_.Compute(request);
    EXPECT_EQ(outcome.code(), code) << outcome.status.error_message();
    EXPECT_THAT(outcome.status.error_message(), ::testing::HasSubstr(text));
    EXPECT_TRUE(IsIdle()) << "after: " << text;
  }

  static constexpr int64_t kQ = 0;
  static constexpr int64_t kK = 128 << 10;
  static constexpr int64_t kV = 256 << 10;
  static constexpr int64_t kO = 384 << 10;
  static constexpr int64_t kLse = 512 << 10;

  const TempFolder folder_;
  GatedDevice* const device_;  // the server's
  TestServer server_;
  std::string instance_id_;
  std::unique_ptr<LocalRegion> region_;
};

}  // namespace attnd::testing

#endif  // ATTND_TESTS_SERVICE_REGION_FIXTURE_H_
