// An encoded answer, its pieces joined, is what a ComputeResponse parser reads.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/wire/messages.h"

namespace attnd::testing {
namespace {

using server::Answer;
using server::Request;
using ::testing::ElementsAre;

class Encode : public ::testing::Test {
 protected:
  std::unique_ptr<Request> Decode(const v1::ComputeRequest& message) {
    const Split split(message.SerializeAsString(), {});
    auto request = server::wire::Decode(split.spans(), {}, {}, pool_);
    EXPECT_TRUE(request.ok()) << request.status();
    return std::move(*request);
  }

  v1::ComputeResponse RoundTrip(const Request& request, const Answer& answer) {
    const auto encoded = server::wire::Encode(request, answer);
    std::string bytes = encoded.head;
    bytes.append(static_cast<size_t>(request.output.o_bytes), 'o');
    bytes += encoded.middle;
    bytes.append(static_cast<size_t>(request.output.lse_bytes), 'l');
    v1::ComputeResponse response;
    EXPECT_TRUE(response.ParseFromString(bytes));
    return response;
  }

  server::BufferPool pool_{int64_t{1} << 24};
};

TEST_F(Encode, EveryField) {
  v1::ComputeRequest message = DenseRequest();
  message.mutable_header()->set_want_lse(true);
  message.mutable_header()->set_request_id("id");
  const auto request = Decode(message);
  Answer answer;
  answer.timing = {1, 2, 3, 4, 5};
  answer.backend = "cpu";
  answer.kernel = "attn_fwd_f32_d64_full_avx2";
  answer.device = "cpu";
  answer.batch_id = 77;
  answer.batch_size = 6;
  const v1::ComputeResponse response = RoundTrip(*request, answer);
  EXPECT_EQ(response.o(), std::string(768, 'o'));
  EXPECT_EQ(response.lse(), std::string(96, 'l'));
  const v1::ComputeResponseHeader& header = response.header();
  EXPECT_EQ(header.o().dtype(), v1::DATA_TYPE_FLOAT32);
  EXPECT_THAT(header.o().shape(), ElementsAre(2, 4, 3, 8));
  EXPECT_EQ(header.lse().dtype(), v1::DATA_TYPE_FLOAT32);
  EXPECT_THAT(header.lse().shape(), ElementsAre(2, 4, 3));
  EXPECT_EQ(header.timing().queue_us(), 1);
  EXPECT_EQ(header.timing().upload_us(), 2);
  EXPECT_EQ(header.timing().run_us(), 3);
  EXPECT_EQ(header.timing().download_us(), 4);
  EXPECT_EQ(header.timing().total_us(), 5);
  EXPECT_EQ(header.backend(), "cpu");
  EXPECT_EQ(header.kernel(), "attn_fwd_f32_d64_full_avx2");
  EXPECT_EQ(header.device(), "cpu");
  EXPECT_EQ(header.batch_id(), 77u);
  EXPECT_EQ(header.batch_size(), 6);
  EXPECT_EQ(header.received_bytes(), 768 + 640 + 640);
  EXPECT_EQ(header.sent_bytes(), 768 + 96);
  EXPECT_EQ(header.transport(), v1::TRANSPORT_UNARY);
  EXPECT_EQ(header.request_id(), "id");
}

TEST_F(Encode, WithoutLse) {
  const auto request = Decode(PackedRequest());
  EXPECT_EQ(server::wire::Encode(*request, {}).middle, "");
  const v1::ComputeResponse response = RoundTrip(*request, {});
  EXPECT_EQ(response.header().o().dtype(), v1::DATA_TYPE_FLOAT16);
  EXPECT_THAT(response.header().o().shape(), ElementsAre(7, 4, 8));
  EXPECT_FALSE(response.header().has_lse());
  EXPECT_EQ(response.o().size(), 448u);
}

TEST_F(Encode, LseIsFloat32WhateverTheDtype) {
  v1::ComputeRequest message = PackedRequest();
  message.mutable_header()->set_want_lse(true);
  const v1::ComputeResponse response = RoundTrip(*Decode(message), {});
  EXPECT_EQ(response.header().lse().dtype(), v1::DATA_TYPE_FLOAT32);
  EXPECT_THAT(response.header().lse().shape(), ElementsAre(4, 7));
  EXPECT_EQ(response.lse().size(), 112u);
}

TEST_F(Encode, K17AnEmptyAnswer) {
  v1::ComputeRequest message = DenseRequest();
  SetShape(*message.mutable_header()->mutable_q(), {2, 4, 0, 8});
  message.mutable_header()->set_want_lse(true);
  FillPayloads(message);
  const v1::ComputeResponse response = RoundTrip(*Decode(message), {});
  EXPECT_THAT(response.header().o().shape(), ElementsAre(2, 4, 0, 8));
  EXPECT_THAT(response.header().lse().shape(), ElementsAre(2, 4, 0));
  EXPECT_EQ(response.o(), "");
  EXPECT_EQ(response.lse(), "");
}

}  // namespace
}  // namespace attnd::testing
