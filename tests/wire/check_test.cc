// What an accepted request becomes. What is refused: malformed_headers.cc.
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/wire/messages.h"

namespace attnd::testing {
namespace {

using kernels::BHSD;
using kernels::BSHD;
using server::ProblemSlot;
using server::Request;
using server::TimePoint;
using server::wire::Limits;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr TimePoint kArrival{std::chrono::seconds(50)};

std::unique_ptr<Request> Decode(const v1::ComputeRequest& message) {
  server::BufferPool pool(int64_t{1} << 24);
  const Split split(message.SerializeAsString(), {3, 100, 500});
  auto request = server::wire::Decode(split.spans(), {}, kArrival, pool);
  EXPECT_TRUE(request.ok()) << request.status();
  return request.ok() ? std::move(*request) : std::make_unique<Request>();
}

void Shapes(v1::ComputeRequest& message, std::initializer_list<int64_t> q,
            std::initializer_list<int64_t> kv) {
  SetShape(*message.mutable_header()->mutable_q(), q);
  SetShape(*message.mutable_header()->mutable_k(), kv);
  SetShape(*message.mutable_header()->mutable_v(), kv);
  FillPayloads(message);
}

const kernels::AttentionProblem& OnlyProblem(const Request& request) {
  EXPECT_EQ(request.problems.size(), 1u);
  return request.problems.at(0).problem;
}

TEST(Decode, DefaultsOfADenseRequest) {
  const auto request = Decode(DenseRequest());
  kernels::AttentionProblem expected;
  expected.dtype = kernels::DType::kF32;
  expected.batch = 2;
  expected.q_heads = 4;
  expected.kv_heads = 2;
  expected.q_len = 3;
  expected.kv_len = 5;
  expected.head_dim = 8;
  expected.scale = kernels::DefaultScale(8);
  EXPECT_EQ(OnlyProblem(*request), expected) << kernels::ToString(OnlyProblem(*request));
  EXPECT_EQ(request->priority, 0);
  EXPECT_EQ(request->deadline, server::kNever);
  EXPECT_EQ(request->arrival, kArrival);
  EXPECT_FALSE(request->output.want_lse);
  EXPECT_EQ(request->output.o_bytes, 2 * 4 * 3 * 8 * 4);
  EXPECT_EQ(request->output.lse_bytes, 0);
  EXPECT_THAT(request->output.o_shape, ElementsAre(2, 4, 3, 8));
}

TEST(Decode, StridesOfBhsd) {
  const ProblemSlot slot = Decode(DenseRequest())->problems.at(0);
  EXPECT_EQ(slot.q_strides, BHSD(4, 3, 8));
  EXPECT_EQ(slot.o_strides, BHSD(4, 3, 8));
  EXPECT_EQ(slot.k_strides, BHSD(2, 5, 8));
  EXPECT_EQ(slot.v_strides, BHSD(2, 5, 8));
  EXPECT_EQ(slot.lse_batch_stride, 4 * 3);
  EXPECT_EQ(slot.lse_head_stride, 3);
}

TEST(Decode, AbsentLayoutIsBhsd) {
  v1::ComputeRequest message = DenseRequest();
  message.mutable_header()->clear_layout();
  EXPECT_EQ(Decode(message)->problems.at(0).q_strides, BHSD(4, 3, 8));
}

TEST(Decode, StridesOfBshd) {
  v1::ComputeRequest message = DenseRequest();
  message.mutable_header()->set_layout(v1::LAYOUT_BSHD);
  message.mutable_header()->set_want_lse(true);
  Shapes(message, {2, 3, 4, 8}, {2, 5, 2, 8});
  const auto request = Decode(message);
  const ProblemSlot& slot = request->problems.at(0);
  EXPECT_EQ(slot.problem.q_len, 3);
  EXPECT_EQ(slot.problem.q_heads, 4);
  EXPECT_EQ(slot.problem.kv_len, 5);
  EXPECT_EQ(slot.problem.kv_heads, 2);
  EXPECT_EQ(slot.q_strides, BSHD(4, 3, 8));
  EXPECT_EQ(slot.k_strides, BSHD(2, 5, 8));
  EXPECT_THAT(request->output.o_shape, ElementsAre(2, 3, 4, 8));
  EXPECT_THAT(request->output.lse_shape, ElementsAre(2, 4, 3));  // whatever the layout
  EXPECT_EQ(request->output.lse_bytes, 2 * 4 * 3 * 4);
}

TEST(Decode, NoHeadAxisIsOneKvHead) {
  for (v1::Layout layout : {v1::LAYOUT_BHSD, v1::LAYOUT_BSHD}) {
    v1::ComputeRequest message = DenseRequest();
    message.mutable_header()->set_layout(layout);
    Shapes(message, {2, 4, 4, 8}, {2, 5, 8});
    const auto request = Decode(message);
    EXPECT_EQ(OnlyProblem(*request).kv_heads, 1);
    EXPECT_EQ(OnlyProblem(*request).kv_len, 5);
    EXPECT_EQ(request->problems[0].k_strides.batch, 5 * 8);
    EXPECT_EQ(request->problems[0].k_strides.row, 8);
  }
}

TEST(Decode, PackedIsOneProblemASequence) {
  v1::ComputeRequest message = PackedRequest();
  message.mutable_header()->set_want_lse(true);
  const auto request = Decode(message);
  ASSERT_EQ(request->problems.size(), 3u);
  const int64_t q_begin[] = {0, 3, 3}, q_len[] = {3, 0, 4};
  const int64_t kv_begin[] = {0, 4, 6}, kv_len[] = {4, 2, 3};
  for (size_t i = 0; i < 3; ++i) {
    const ProblemSlot& slot = request->problems[i];
    EXPECT_EQ(slot.problem.batch, 1);
    EXPECT_EQ(slot.problem.q_len, q_len[i]);
    EXPECT_EQ(slot.problem.kv_len, kv_len[i]);
    EXPECT_EQ(slot.q_offset_elems, q_begin[i] * 4 * 8);
    EXPECT_EQ(slot.o_offset_elems, q_begin[i] * 4 * 8);
    EXPECT_EQ(slot.k_offset_elems, kv_begin[i] * 2 * 8);
    EXPECT_EQ(slot.v_offset_elems, kv_begin[i] * 2 * 8);
    EXPECT_EQ(slot.q_strides.row, 4 * 8);
    EXPECT_EQ(slot.q_strides.head, 8);
    EXPECT_EQ(slot.lse_offset_elems, q_begin[i]);
    EXPECT_EQ(slot.lse_head_stride, 7);
  }
  EXPECT_THAT(request->output.lse_shape, ElementsAre(4, 7));
  EXPECT_EQ(request->output.lse_bytes, 4 * 7 * 4);
  EXPECT_EQ(request->output.o_bytes, 7 * 4 * 8 * 2);
}

TEST(Decode, PackedWithoutSequences) {
  v1::ComputeRequest message = PackedRequest();
  Shapes(message, {0, 4, 8}, {0, 8});
  message.mutable_header()->mutable_cu_seqlens_q()->Truncate(1);
  message.mutable_header()->mutable_cu_seqlens_kv()->Truncate(1);
  const auto request = Decode(message);
  EXPECT_TRUE(request->problems.empty());
  EXPECT_EQ(request->output.o_bytes, 0);
}

TEST(Decode, S6ZeroExtentsAreFine) {
  const std::initializer_list<int64_t> q_shapes[] = {{0, 4, 3, 8}, {2, 0, 3, 8}, {2, 4, 0, 8}};
  const std::initializer_list<int64_t> kv_shapes[] = {{0, 2, 5, 8}, {2, 0, 5, 8}, {2, 2, 5, 8}};
  for (int i = 0; i < 3; ++i) {
    v1::ComputeRequest message = DenseRequest();
    Shapes(message, q_shapes[i], kv_shapes[i]);
    const auto request = Decode(message);
    EXPECT_TRUE(OnlyProblem(*request).empty());
    EXPECT_EQ(request->output.o_bytes, 0);
  }
}

TEST(Decode, K16NoKeysIsNotEmpty) {
  v1::ComputeRequest message = DenseRequest();
  Shapes(message, {2, 4, 3, 8}, {2, 2, 0, 8});
  const auto request = Decode(message);
  EXPECT_FALSE(OnlyProblem(*request).empty());
  EXPECT_EQ(request->output.o_bytes, 2 * 4 * 3 * 8 * 4);
}

TEST(Decode, EveryOption) {
  v1::ComputeRequest message = DenseRequest();
  v1::ComputeHeader& header = *message.mutable_header();
  header.set_causal(v1::CAUSAL_ALIGNMENT_TOP_LEFT);
  header.mutable_window()->set_left(0);
  header.mutable_window()->set_right(INT64_MAX);
  header.set_scale(0.5f);
  header.set_softcap(30);
  for (float slope : {1.0f, 0.5f, 0.25f, -1.0f}) header.add_alibi_slopes(slope);
  header.set_priority(9);
  header.set_timeout_us(1500);
  header.set_request_id("caf\xc3\xa9");
  const auto request = Decode(message);
  const kernels::AttentionProblem& problem = OnlyProblem(*request);
  EXPECT_EQ(problem.mask.causal.alignment, kernels::Causal::kTopLeft);
  EXPECT_EQ(problem.mask.window.left, 0);
  EXPECT_EQ(problem.mask.window.right, kernels::kUnbounded);
  EXPECT_EQ(problem.scale, 0.5f);
  EXPECT_EQ(problem.softcap, 30.0f);
  EXPECT_TRUE(problem.alibi);
  EXPECT_THAT(request->alibi_slopes, ElementsAre(1.0f, 0.5f, 0.25f, -1.0f));
  EXPECT_EQ(request->priority, 9);
  EXPECT_EQ(request->deadline, kArrival + server::microseconds(1500));
  EXPECT_EQ(request->request_id, "caf\xc3\xa9");
}

TEST(Decode, K23WindowSidesAreUnboundedUnlessGiven) {
  v1::ComputeRequest message = DenseRequest();
  message.mutable_header()->mutable_window()->set_left(2);
  EXPECT_EQ(OnlyProblem(*Decode(message)).mask.window,
            (kernels::WindowMask{2, kernels::kUnbounded}));
  message.mutable_header()->mutable_window()->clear_left();
  EXPECT_FALSE(OnlyProblem(*Decode(message)).mask.window.active());
}

TEST(Decode, AFarTimeoutIsNoDeadline) {
  v1::ComputeRequest message = DenseRequest();
  message.mutable_header()->set_timeout_us(INT64_MAX);
  EXPECT_EQ(Decode(message)->deadline, server::kNever);
  message.mutable_header()->set_timeout_us(INT64_MAX /
                                           1000);  // fits nanoseconds, but not with arrival
  EXPECT_EQ(Decode(message)->deadline, server::kNever);
}

TEST(Decode, PayloadsAreCopied) {
  const v1::ComputeRequest message = DenseRequest();
  const auto request = Decode(message);
  ASSERT_EQ(request->q.size_bytes(), static_cast<int64_t>(message.q().size()));
  EXPECT_EQ(std::memcmp(request->q.data(), message.q().data(), message.q().size()), 0);
  EXPECT_EQ(std::memcmp(request->k.data(), message.k().data(), message.k().size()), 0);
  EXPECT_EQ(std::memcmp(request->v.data(), message.v().data(), message.v().size()), 0);
  EXPECT_EQ(request->payload_bytes(), 768 + 640 + 640);
}

TEST(Decode, AFullPoolIsResourceExhaustedAndGivesBack) {
  server::BufferPool pool(3000);  // holds one request, and of a second one q alone
  const Split split(DenseRequest().SerializeAsString(), {});
  const auto first = server::wire::Decode(split.spans(), {}, kArrival, pool);
  ASSERT_TRUE(first.ok()) << first.status();
  const int64_t used_bytes = pool.used_bytes();
  const auto second = server::wire::Decode(split.spans(), {}, kArrival, pool);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool.used_bytes(), used_bytes);
}

TEST(Decode, WhatCanNeverFitThePoolIsInvalid) {
  server::BufferPool pool(2000);  // each payload fits, the three together do not
  const Split split(DenseRequest().SerializeAsString(), {});
  const absl::Status status = server::wire::Decode(split.spans(), {}, kArrival, pool).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2048"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("2000"));
}

// Sizes that no test has the memory for: Check() sees numbers only.
TEST(Check, K34SizesPastFourGibibytes) {
  v1::ComputeHeader header = DenseRequest().header();
  SetShape(*header.mutable_q(), {1, 1, 1, 8});
  SetShape(*header.mutable_k(), {1, 1, int64_t{1} << 30, 8});
  SetShape(*header.mutable_v(), {1, 1, int64_t{1} << 30, 8});
  const int64_t kv_bytes = int64_t{32} << 30;
  const auto request = server::wire::Check(header, 32, kv_bytes, kv_bytes, {}, kArrival);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ((*request)->problems[0].k_strides.batch, int64_t{8} << 30);
}

TEST(Check, AnAnswerThatNoMessageHoldsIsRefused) {
  v1::ComputeHeader header = DenseRequest().header();
  SetShape(*header.mutable_q(), {1, 1, int64_t{1} << 28, 1});
  SetShape(*header.mutable_k(), {1, 1, 1, 1});
  SetShape(*header.mutable_v(), {1, 1, 1, 1});
  const int64_t q_bytes = int64_t{1} << 30;
  EXPECT_TRUE(server::wire::Check(header, q_bytes, 4, 4, {}, kArrival).ok());
  header.set_want_lse(true);  // as many bytes again
  const absl::Status status = server::wire::Check(header, q_bytes, 4, 4, {}, kArrival).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1073741824 bytes of o"));
}

TEST(Check, LimitsAreTheCallers) {
  Limits limits;
  limits.max_priority = 1;
  limits.max_request_id_bytes = 4;
  v1::ComputeHeader header = DenseRequest().header();
  header.set_priority(1);
  header.set_request_id("four");
  EXPECT_TRUE(server::wire::Check(header, 768, 640, 640, limits, kArrival).ok());
  header.set_priority(2);
  EXPECT_FALSE(server::wire::Check(header, 768, 640, 640, limits, kArrival).ok());
  header.set_priority(0);
  header.set_request_id("fives");
  EXPECT_FALSE(server::wire::Check(header, 768, 640, 640, limits, kArrival).ok());
}

}  // namespace
}  // namespace attnd::testing
