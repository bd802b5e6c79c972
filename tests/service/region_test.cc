// Tensors in memory regions: the bits of inline ones, no copy, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/service/region_fixture.h"

namespace attnd::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(RegionTest, AnswersTheBitsOfInlineTensorsInPlace) {
  for (const v1::DataType dtype :
       {v1::DATA_TYPE_FLOAT32, v1::DATA_TYPE_FLOAT16, v1::DATA_TYPE_BFLOAT16}) {
    for (const bool want_lse : {false, true}) {
      Shape shape = kMiddling;
      shape.dtype = dtype;
      v1::ComputeRequest request = MakeRequest(shape);
      request.mutable_header()->set_want_lse(want_lse);
      const Outcome unary = server_.Compute(request);
      ASSERT_TRUE(IsRight(unary, request));
      const Outcome outcome = server_.Compute(InRegion(request));
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
      ExpectInRegion(unary.response);
      EXPECT_EQ(outcome.response.o(), "");
      EXPECT_EQ(outcome.response.lse(), "");
      const v1::ComputeResponseHeader& header = outcome.response.header();
      EXPECT_EQ(header.transport(), v1::TRANSPORT_REGION);
      EXPECT_EQ(header.o().SerializeAsString(), unary.response.header().o().SerializeAsString());
      EXPECT_EQ(header.lse().SerializeAsString(),
                unary.response.header().lse().SerializeAsString());
      EXPECT_EQ(header.received_bytes(), unary.response.header().received_bytes());
      EXPECT_EQ(header.sent_bytes(), unary.response.header().sent_bytes());
      EXPECT_TRUE(IsIdle());
    }
  }
}

TEST_F(RegionTest, CountsBytesByTransportAndRegionsAsTheyComeAndGo) {
  const v1::ComputeRequest request = MakeRequest(kMiddling);
  const double inputs = request.q().size() + request.k().size() + request.v().size();
  ASSERT_TRUE(server_.Compute(InRegion(request)).status.ok());
  EXPECT_EQ(server_.Metric(R"(attnd_received_bytes_total{transport="region"})"), inputs);
  EXPECT_EQ(server_.Metric(R"(attnd_received_bytes_total{transport="unary"})"), 0);
  EXPECT_EQ(server_.Metric(R"(attnd_sent_bytes_total{transport="region"})"), request.q().size());
  EXPECT_EQ(server_.Metric("attnd_regions"), 1);
  EXPECT_EQ(server_.Metric("attnd_region_bytes"), kRegionBytes);
  EXPECT_EQ(server_.Metric("attnd_region_connections"), 1);
  region_.reset();
  EXPECT_TRUE(Eventually([&] {
    return server_.Metric("attnd_regions") == 0 && server_.Metric("attnd_region_bytes") == 0 &&
           server_.Metric("attnd_region_connections") == 0;
  }));
}

TEST_F(RegionTest, EachTensorIsInlineOrNotByItself) {
  const v1::ComputeRequest request = MakeRequest(kMiddling);
  const std::string expected = server_.Compute(request).response.o();
  for (int in_region = 1; in_region < 16; ++in_region) {
    v1::ComputeRequest mixed = request;
    v1::ComputeHeader* const header = mixed.mutable_header();
    if (in_region & 1) Put(kQ, header->mutable_q(), mixed.mutable_q());
    if (in_region & 2) Put(kK, header->mutable_k(), mixed.mutable_k());
    if (in_region & 4) Put(kV, header->mutable_v(), mixed.mutable_v());
    if (in_region & 8) Name(kO, header->mutable_o_destination()->mutable_region());
    const Outcome outcome = server_.Compute(mixed);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_EQ(in_region & 8 ? Bytes(kO, expected.size()) : outcome.response.o(), expected);
  }
  EXPECT_TRUE(IsIdle());
}

// Q as a view of [batch, len, heads, head_dim] with rows of padding, O the same; K's one head read
// by stride 0 would be another problem, so K stays dense.
TEST_F(RegionTest, StridesAndGaps) {
  const v1::ComputeRequest request = MakeRequest(kMiddling);
  const std::string expected = server_.Compute(request).response.o();
  const int64_t heads = kMiddling.q_heads;
  const int64_t len = kMiddling.q_len;
  const int64_t dim = kMiddling.head_dim;
  const int64_t pitch = heads * (dim + 8);
  const auto place = [&](int64_t b, int64_t h, int64_t i) {
    return 4 * (b * (len + 3) * pitch + i * pitch + h * (dim + 8));
  };
  v1::ComputeRequest strided = InRegion(request);
  auto* const q = strided.mutable_header()->mutable_q();
  auto* const o = strided.mutable_header()->mutable_o_destination();
  for (const int64_t stride : {(len + 3) * pitch, dim + 8, pitch, int64_t{1}}) {
    q->add_strides_elems(stride);
    o->add_strides_elems(stride);
  }
  std::memset(region_->bytes().data() + kO, 0x5a, 64 << 10);
  for (int64_t b = 0; b < kMiddling.batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < len; ++i) {
        const int64_t dense = 4 * dim * ((b * heads + h) * len + i);
        std::memcpy(region_->bytes().data() + kQ + place(b, h, i), request.q().data() + dense,
                    static_cast<size_t>(4 * dim));
      }
    }
  }
  const Outcome outcome = server_.Compute(strided);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  for (int64_t b = 0; b < kMiddling.batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < len; ++i) {
        const int64_t dense = 4 * dim * ((b * heads + h) * len + i);
        const int64_t at = kO + place(b, h, i);
        EXPECT_EQ(Bytes(at, 4 * dim), expected.substr(dense, 4 * dim));
        EXPECT_EQ(Bytes(at + 4 * dim, 32), std::string(32, 0x5a)) << "the gap is written";
      }
    }
  }
}

TEST_F(RegionTest, PackedSequencesAndOneHeadOfKeys) {
  v1::ComputeRequest request = MakeRequest(
      {.batch = 1, .q_heads = 3, .kv_heads = 1, .q_len = 3, .kv_len = 20, .head_dim = 16});
  v1::ComputeHeader* const header = request.mutable_header();
  header->set_layout(v1::LAYOUT_THD);
  header->set_want_lse(true);
  // The same bytes as [total, heads, head_dim].
  for (v1::TensorSpec* spec : {header->mutable_q(), header->mutable_k(), header->mutable_v()}) {
    spec->clear_shape();
  }
  for (const int64_t extent : {3, 3, 16}) header->mutable_q()->add_shape(extent);
  for (const int64_t extent : {20, 16}) header->mutable_k()->add_shape(extent);
  for (const int64_t extent : {20, 16}) header->mutable_v()->add_shape(extent);
  for (const int64_t end : {0, 2, 2, 3}) header->add_cu_seqlens_q(end);
  for (const int64_t end : {0, 9, 9, 20}) header->add_cu_seqlens_kv(end);
  const Outcome unary = server_.Compute(request);
  ASSERT_TRUE(unary.status.ok()) << unary.status.error_message();
  v1::ComputeRequest regional = InRegion(request);
  ASSERT_TRUE(server_.Compute(regional).status.ok());
  EXPECT_EQ(Bytes(kO, unary.response.o().size()), unary.response.o());
  EXPECT_EQ(Bytes(kLse, unary.response.lse().size()), unary.response.lse());
  // O with heads outermost.
  for (const int64_t stride : {16, 48, 1}) {
    regional.mutable_header()->mutable_o_destination()->add_strides_elems(stride);
  }
  ASSERT_TRUE(server_.Compute(regional).status.ok());
  for (int64_t token = 0; token < 3; ++token) {
    for (int64_t head = 0; head < 3; ++head) {
      EXPECT_EQ(Bytes(kO + 4 * (16 * token + 48 * head), 64),
                unary.response.o().substr(4 * 16 * (3 * token + head), 64));
    }
  }
}

TEST_F(RegionTest, EmptyTensorsHavePlacesToo) {
  for (const Shape& shape : {Shape{.q_len = 0}, Shape{.kv_len = 0}, Shape{.batch = 0}}) {
    const v1::ComputeRequest request = MakeRequest(shape);
    const size_t o_bytes = request.q().size();
    std::memset(region_->bytes().data() + kO, 0x5a, 4096);
    const Outcome outcome = server_.Compute(InRegion(request));
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    EXPECT_EQ(Bytes(kO, o_bytes), std::string(o_bytes, '\0'));
    EXPECT_EQ(Bytes(kO + static_cast<int64_t>(o_bytes), 1), "\x5a");
  }
}

TEST_F(RegionTest, S16RefusesRangesThatAreNotInTheRegion) {
  const v1::ComputeRequest good = InRegion(MakeRequest(kMiddling));
  const auto invalid = grpc::StatusCode::INVALID_ARGUMENT;
  v1::ComputeRequest bad = good;
  bad.mutable_header()->mutable_q()->mutable_region()->set_offset_bytes(kRegionBytes - 4);
  ExpectRefused(bad, invalid, "q: offset_bytes 1048572 and 37888 bytes from there do not lie in");
  bad.mutable_header()->mutable_q()->mutable_region()->set_offset_bytes(INT64_MAX - 3);
  ExpectRefused(bad, invalid, "q: offset_bytes 9223372036854775804");
  bad.mutable_header()->mutable_q()->mutable_region()->set_offset_bytes(-4);
  ExpectRefused(bad, invalid, "q.region.offset_bytes is -4");
  bad.mutable_header()->mutable_q()->mutable_region()->set_offset_bytes(2);
  ExpectRefused(bad, invalid, "q.region.offset_bytes is 2; it must be a multiple of 4");
  bad = good;
  bad.mutable_header()->mutable_o_destination()->mutable_region()->set_offset_bytes(kRegionBytes);
  ExpectRefused(bad, invalid, "o_destination: offset_bytes 1048576");
  bad = good;
  for (const int64_t stride : {int64_t{1} << 61, int64_t{64}, int64_t{32}, int64_t{1}}) {
    bad.mutable_header()->mutable_k()->add_strides_elems(stride);
  }
  ExpectRefused(bad, invalid, "reach in bytes overflows 64 bits");
  bad.mutable_header()->mutable_k()->set_strides_elems(0, int64_t{1} << 40);
  ExpectRefused(bad, invalid, "k: offset_bytes 131072");
  EXPECT_EQ(server_.Metric(R"(attnd_region_refusals_total{reason="range"})"), 4);
}

TEST_F(RegionTest, RefusesStridesThatAreNone) {
  const v1::ComputeRequest good = InRegion(MakeRequest(kMiddling));
  const auto invalid = grpc::StatusCode::INVALID_ARGUMENT;
  const auto with = [&](std::vector<int64_t> strides, bool output = false) {
    v1::ComputeRequest request = good;
    auto* const to =
        output ? request.mutable_header()->mutable_o_destination()->mutable_strides_elems()
               : request.mutable_header()->mutable_q()->mutable_strides_elems();
    to->Add(strides.begin(), strides.end());
    return request;
  };
  ExpectRefused(with({4736, 1184, 1}), invalid, "q.strides_elems has 3 entries");
  ExpectRefused(with({4736, 1184, 32, 2}), invalid, "its last entry must be 1");
  ExpectRefused(with({4736, -1184, 32, 1}), invalid, "q.strides_elems[1] is -1184");
  ExpectRefused(with({0, 1184, 32, 1}, true), invalid, "elements of an output must lie apart");
  ExpectRefused(with({4736, 1184, 31, 1}, true), invalid, "elements of an output must lie apart");
  EXPECT_TRUE(server_.Compute(with({0, 1184, 31, 1})).status.ok());  // inputs may
  v1::ComputeRequest inlined = MakeRequest(kMiddling);
  inlined.mutable_header()->mutable_v()->add_strides_elems(1);
  ExpectRefused(inlined, invalid, "v.region is missing");
  v1::ComputeRequest both = good;
  both.set_k("four");
  ExpectRefused(both, invalid, "k has 4 bytes; it lies in a region");
  v1::ComputeRequest unwanted = good;
  Name(kLse, unwanted.mutable_header()->mutable_lse_destination()->mutable_region());
  ExpectRefused(unwanted, invalid, "lse_destination is given, and want_lse is false");
  v1::ComputeRequest stream = good;
  const Outcome outcome = ComputeStream(server_.channel(), StreamMessages(stream, 4096));
  EXPECT_EQ(outcome.code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(outcome.status.error_message(), HasSubstr("need Compute"));
}

TEST_F(RegionTest, S54RefusesHandlesThatAreNobodysAndOutputsOverOthers) {
  const v1::ComputeRequest good = InRegion(MakeRequest(kMiddling));
  const auto invalid = grpc::StatusCode::INVALID_ARGUMENT;
  v1::ComputeRequest bad = good;
  std::string guessed = Handle(*region_);
  guessed[7] = static_cast<char>(guessed[7] ^ 1);
  bad.mutable_header()->mutable_k()->mutable_region()->set_handle(guessed);
  ExpectRefused(bad, grpc::StatusCode::NOT_FOUND, "k: there is no such region");
  bad.mutable_header()->mutable_k()->mutable_region()->set_handle("short");
  ExpectRefused(bad, invalid, "k.region.handle has 5 bytes; a region's has 16");
  bad = good;
  bad.mutable_header()->mutable_o_destination()->mutable_region()->set_offset_bytes(kV + 64);
  ExpectRefused(bad, invalid, "o_destination: bytes [262208, ");
  bad.mutable_header()->set_want_lse(true);
  Name(kO + 64, bad.mutable_header()->mutable_lse_destination()->mutable_region());
  Name(kO, bad.mutable_header()->mutable_o_destination()->mutable_region());
  ExpectRefused(bad, invalid, "lse_destination: bytes");
  v1::ComputeRequest same = good;  // inputs may be one
  *same.mutable_header()->mutable_v()->mutable_region() = same.header().k().region();
  EXPECT_TRUE(server_.Compute(same).status.ok());
  EXPECT_TRUE(IsIdle());
}

TEST_F(RegionTest, S54AnotherCallsRangesAreRefusedWhileItRuns) {
  const v1::ComputeRequest request = InRegion(MakeRequest(kMiddling));
  device_->Hold();
  const auto running = server_.Begin(request);
  device_->WaitUntilHeld();
  const Outcome second = server_.Compute(request);
  EXPECT_EQ(second.code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(second.status.error_message(),
              HasSubstr("which this call or another one has in use"));
  device_->Release();
  EXPECT_TRUE(running->Wait().status.ok());
  // From its answer on, the ranges are free.
  for (int i = 0; i < 200; ++i) {
    const Outcome next = server_.Compute(request);
    ASSERT_TRUE(next.status.ok()) << i << ": " << next.status.error_message();
  }
}

TEST_F(RegionTest, S14TheRegionGoesWhileACallUsesIt) {
  const v1::ComputeRequest request = InRegion(MakeRequest(kMiddling));
  device_->Hold();
  const auto running = server_.Begin(request);
  device_->WaitUntilHeld();
  region_.reset();
  EXPECT_TRUE(Eventually([&] { return server_.Metric("attnd_region_connections") == 0; }));
  EXPECT_EQ(server_.Metric("attnd_regions"), 1);
  EXPECT_EQ(server_.Compute(request).code(), grpc::StatusCode::NOT_FOUND);
  device_->Release();
  EXPECT_TRUE(running->Wait().status.ok());
  EXPECT_TRUE(Eventually([&] { return server_.Metric("attnd_regions") == 0; }));
}

TEST_F(RegionTest, S18OneClientsEndIsNotAnothers) {
  auto other = NewRegion();
  other.reset();
  EXPECT_TRUE(Eventually([&] { return server_.Metric("attnd_regions") == 1; }));
  const v1::ComputeRequest request = MakeRequest(kMiddling);
  const std::string expected = server_.Compute(request).response.o();
  ASSERT_TRUE(server_.Compute(InRegion(request)).status.ok());
  EXPECT_EQ(Bytes(kO, expected.size()), expected);
}

// A storm of deadlines and cancels: whatever the moment, nothing stays leased.
TEST_F(RegionTest, S22CancelledAndLateCallsLeaveNoLease) {
  const v1::ComputeRequest request = InRegion(MakeRequest(kMiddling));
  const std::set<grpc::StatusCode> expected = {
      grpc::StatusCode::OK, grpc::StatusCode::CANCELLED, grpc::StatusCode::DEADLINE_EXCEEDED,
      grpc::StatusCode::INVALID_ARGUMENT};  // the one before still runs
  for (int i = 0; i < 300; ++i) {
    const auto call = server_.Begin(request, {.timeout = std::chrono::milliseconds(1 + i % 3)});
    if (i % 2 == 0) call->Cancel();
    const Outcome outcome = call->Wait();
    EXPECT_EQ(expected.count(outcome.code()), 1U) << outcome.status.error_message();
  }
  EXPECT_TRUE(IsIdle());
  EXPECT_TRUE(server_.Compute(request).status.ok());
}

TEST_F(RegionTest, ACancelledCallKeepsItsRangesUntilTheDeviceIsDone) {
  const v1::ComputeRequest request = InRegion(MakeRequest(kMiddling));
  device_->Hold();
  const auto running = server_.Begin(request);
  device_->WaitUntilHeld();
  running->Cancel();
  EXPECT_EQ(running->Wait().code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(server_.Metric("attnd_region_leases"), 4);
  device_->Release();
  EXPECT_TRUE(IsIdle());
}

TEST(RegionlessTest, AServerWithoutASideSocketSaysSo) {
  TestServer server;
  v1::ComputeRequest request = MakeRequest({});
  request.clear_q();
  request.mutable_header()->mutable_q()->mutable_region()->set_handle(std::string(16, 'x'));
  const Outcome outcome = server.Compute(request);
  EXPECT_EQ(outcome.code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(outcome.status.error_message(), HasSubstr("needs a server with a side socket"));
}

TEST(RegionlessTest, AGivenPathThatIsTakenEndsTheStartAndTheDefaultOneDoesNot) {
  const TempFolder folder;
  server::ServerOptions options = TestOptions();
  options.local_socket = folder / "side.sock";
  TestServer first(options);
  const auto second = server::Server::Start(options);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat("--local_socket=", options.local_socket)));
  ASSERT_EQ(setenv("XDG_RUNTIME_DIR", folder.path().c_str(), 1), 0);
  options.local_socket = "";
  TestServer with(options);
  EXPECT_TRUE(std::filesystem::exists(folder / "attnd.sock"));
  TestServer without(options);
  EXPECT_TRUE(IsRight(without.Compute(MakeRequest({})), MakeRequest({})));
  EXPECT_THAT(with->metrics().Serialize(), HasSubstr("attnd_regions 0"));
  EXPECT_THAT(without->metrics().Serialize(), ::testing::Not(HasSubstr("attnd_regions")));
  unsetenv("XDG_RUNTIME_DIR");
}

}  // namespace
}  // namespace attnd::testing
