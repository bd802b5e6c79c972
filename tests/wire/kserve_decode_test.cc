// A ModelInferRequest means what the same problem means to attnd.v1, and a bad one is refused by
// name.
#include <cstring>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/wire/kserve.h"
#include "server/wire/kserve_parameters.h"
#include "tests/wire/kserve_cases.h"
#include "tests/wire/kserve_reference.h"
#include "tests/wire/messages.h"

namespace attnd::testing {
namespace {

using inference::ModelInferRequest;
using server::Buffer;
using server::ProblemSlot;
using server::Request;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr server::TimePoint kArrival{std::chrono::seconds(1000)};

class KserveDecode : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Request>> Decode(absl::Span<const server::wire::ByteSpan> spans) {
    return server::wire::Inference().Decode(spans, {}, kArrival, pool_);
  }
  std::unique_ptr<Request> Good(const ModelInferRequest& message) {
    const Split split(message.SerializeAsString(), {});
    auto request = Decode(split.spans());
    EXPECT_TRUE(request.ok()) << request.status();
    return request.ok() ? *std::move(request) : std::make_unique<Request>();
  }
  std::unique_ptr<Request> GoodV1(const v1::ComputeRequest& message) {
    const Split split(message.SerializeAsString(), {});
    auto request = server::wire::Decode(split.spans(), {}, kArrival, pool_);
    EXPECT_TRUE(request.ok()) << request.status();
    return *std::move(request);
  }

  server::BufferPool pool_{int64_t{1} << 30};
};

std::string Bytes(const Buffer& buffer) {
  return {reinterpret_cast<const char*>(buffer.data()), static_cast<size_t>(buffer.size_bytes())};
}

void ExpectSame(const Request& a, const Request& b) {
  EXPECT_EQ(a.request_id, b.request_id);
  EXPECT_EQ(a.priority, b.priority);
  EXPECT_EQ(a.deadline, b.deadline);
  EXPECT_EQ(a.output.o_shape, b.output.o_shape);
  EXPECT_EQ(a.output.want_lse, b.output.want_lse);
  EXPECT_EQ(a.output.lse_shape, b.output.lse_shape);
  ASSERT_EQ(a.problems.size(), b.problems.size());
  for (size_t i = 0; i < a.problems.size(); ++i) {
    const ProblemSlot &x = a.problems[i], &y = b.problems[i];
    EXPECT_TRUE(x.problem == y.problem);
    EXPECT_TRUE(x.q_strides == y.q_strides && x.k_strides == y.k_strides);
    EXPECT_EQ(x.q_offset_elems, y.q_offset_elems);
    EXPECT_EQ(x.k_offset_elems, y.k_offset_elems);
    EXPECT_EQ(x.lse_offset_elems, y.lse_offset_elems);
  }
  EXPECT_EQ(Bytes(a.q), Bytes(b.q));
  EXPECT_EQ(Bytes(a.k), Bytes(b.k));
  EXPECT_EQ(Bytes(a.v), Bytes(b.v));
}

TEST_F(KserveDecode, RandomRequestsMeanWhatTheyMeanToAttndV1) {
  std::mt19937 random(31);
  int rounds = 0;
  while (rounds < 1000) {
    v1::ComputeRequest message = RandomRequest(random);
    message.mutable_header()->clear_alibi_slopes();
    if (message.header().layout() == v1::LAYOUT_BSHD) continue;
    ++rounds;
    const Split split = Split::Random(InferRequestOf(message).SerializeAsString(), random);
    const auto request = Decode(split.spans());
    ASSERT_TRUE(request.ok()) << request.status() << message.header().DebugString();
    ExpectSame(**request, *GoodV1(message));
    ASSERT_FALSE(HasFailure()) << message.header().DebugString();
  }
}

TEST_F(KserveDecode, InputsComeInAnyOrderAndTheirContentsWithThem) {
  const ModelInferRequest in_order = PackedInfer();
  const auto expected = Good(in_order);
  std::vector<int> order = {0, 1, 2, 3, 4};
  std::mt19937 random(32);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    ModelInferRequest message = in_order;
    message.clear_inputs();
    message.clear_raw_input_contents();
    for (const int i : order) {
      *message.add_inputs() = in_order.inputs(i);
      message.add_raw_input_contents(in_order.raw_input_contents(i));
    }
    ExpectSame(*Good(message), *expected);
  }
}

TEST_F(KserveDecode, ContentsMayBeListsInstead) {
  const ModelInferRequest raw = DenseInfer();
  ModelInferRequest listed = raw;
  listed.clear_raw_input_contents();
  for (int i = 0; i < 3; ++i) {
    auto& list = *listed.mutable_inputs(i)->mutable_contents()->mutable_fp32_contents();
    const std::string& bytes = raw.raw_input_contents(i);
    list.Resize(static_cast<int>(bytes.size() / sizeof(float)), 0);
    std::memcpy(list.mutable_data(), bytes.data(), bytes.size());
  }
  ExpectSame(*Good(listed), *Good(raw));
}

TEST_F(KserveDecode, CumulativeLengthsAreInt32OrInt64) {
  const ModelInferRequest wide = PackedInfer();
  ModelInferRequest narrow = wide;
  const int32_t q_ends[] = {0, 3, 3, 7}, k_ends[] = {0, 4, 6, 9};
  for (int i = 3; i < 5; ++i) {
    narrow.mutable_inputs(i)->set_datatype("INT32");
    narrow.set_raw_input_contents(
        i, std::string(reinterpret_cast<const char*>(i == 3 ? q_ends : k_ends), 16));
  }
  ExpectSame(*Good(narrow), *Good(wide));
}

TEST_F(KserveDecode, EmptyTensorsNeedNoContents) {
  ModelInferRequest message = DenseInfer();
  for (int i = 0; i < 3; ++i) message.mutable_inputs(i)->set_shape(0, 0);
  message.clear_raw_input_contents();
  EXPECT_EQ(Good(message)->output.o_bytes, 0);
  for (int i = 0; i < 3; ++i) message.add_raw_input_contents("");
  EXPECT_EQ(Good(message)->output.o_bytes, 0);
}

TEST_F(KserveDecode, WithoutOutputsAllAreMeant) {
  ModelInferRequest message = DenseInfer();
  EXPECT_TRUE(Good(message)->output.want_lse);
  message.add_outputs()->set_name("O");
  EXPECT_FALSE(Good(message)->output.want_lse);
}

TEST_F(KserveDecode, NamedMemoryIsRefusedWhereThereIsNone) {
  ModelInferRequest message = DenseInfer();
  auto& parameters = *message.mutable_inputs(1)->mutable_parameters();
  parameters["shared_memory_region"].set_string_param("mine");
  parameters["shared_memory_byte_size"].set_int64_param(640);
  const Split split(message.SerializeAsString(), {});
  const absl::Status status = Decode(split.spans()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("input \"K\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"mine\""));
}

// What a parameter of this value makes of a header.
using Set = void (*)(inference::InferParameter&);
v1::ComputeHeader HeaderWith(const std::string& name, Set set) {
  server::wire::InferParameters parameters;
  set(parameters[name]);
  v1::ComputeHeader header;
  const absl::Status status = server::wire::ReadParameters(parameters, {}, header);
  EXPECT_TRUE(status.ok()) << name << ": " << status;
  return header;
}

TEST(KserveParameters, CausalIsAFlagOrAnAlignment) {
  const Set bottom_right[] = {[](auto& p) { p.set_bool_param(true); },
                              [](auto& p) { p.set_int64_param(1); },
                              [](auto& p) { p.set_uint64_param(1); },
                              [](auto& p) { p.set_double_param(1); },
                              [](auto& p) { p.set_string_param("true"); },
                              [](auto& p) { p.set_string_param("bottom_right"); }};
  for (const Set set : bottom_right) {
    EXPECT_EQ(HeaderWith("causal", set).causal(), v1::CAUSAL_ALIGNMENT_BOTTOM_RIGHT);
  }
  const Set none[] = {[](auto& p) { p.set_bool_param(false); },
                      [](auto& p) { p.set_int64_param(0); },
                      [](auto& p) { p.set_string_param("none"); }};
  for (const Set set : none) {
    EXPECT_EQ(HeaderWith("causal", set).causal(), v1::CAUSAL_ALIGNMENT_UNSPECIFIED);
  }
  const auto top_left = HeaderWith("causal", [](auto& p) { p.set_string_param("top_left"); });
  EXPECT_EQ(top_left.causal(), v1::CAUSAL_ALIGNMENT_TOP_LEFT);
}

TEST(KserveParameters, NumbersComeInEveryTypeThatHoldsOne) {
  const Set five[] = {[](auto& p) { p.set_int64_param(5); }, [](auto& p) { p.set_uint64_param(5); },
                      [](auto& p) { p.set_double_param(5); },
                      [](auto& p) { p.set_string_param("5"); }};
  for (const Set set : five) {
    EXPECT_EQ(HeaderWith("window_left", set).window().left(), 5);
    EXPECT_EQ(HeaderWith("window_right", set).window().right(), 5);
    EXPECT_EQ(HeaderWith("softcap", set).softcap(), 5);
    EXPECT_EQ(HeaderWith("scale", set).scale(), 5);
    EXPECT_EQ(HeaderWith("priority", set).priority(), 5u);
    EXPECT_EQ(HeaderWith("timeout", set).timeout_us(), 5);
  }
  EXPECT_EQ(HeaderWith("scale", [](auto& p) { p.set_double_param(0.1); }).scale(), 0.1f);
}

TEST(KserveParameters, WhatTritonsClientsSendWithoutMeaningItChangesNothing) {
  const std::string nothing = v1::ComputeHeader().SerializeAsString();
  const Set zero = [](auto& p) { p.set_int64_param(0); };
  const Set no = [](auto& p) { p.set_bool_param(false); };
  const Set yes = [](auto& p) { p.set_bool_param(true); };
  for (const auto& [name, set] : std::vector<std::pair<std::string, Set>>{
           {"timeout", zero},
           {"priority", zero},
           {"sequence_id", zero},
           {"sequence_id", [](auto& p) { p.set_string_param(""); }},
           {"sequence_start", no},
           {"sequence_end", no},
           {"triton_enable_empty_final_response", yes},
           {"binary_data_output", yes}}) {
    EXPECT_EQ(HeaderWith(name, set).SerializeAsString(), nothing) << name;
  }
}

const std::vector<MalformedCase>& Cases() {
  static const auto& cases = *new std::vector<MalformedCase>(MalformedInferCases());
  return cases;
}

TEST_F(KserveDecode, EachMalformedRequestIsRefusedByName) {
  std::set<std::string> names;
  const std::string good = DenseInfer().SerializeAsString();
  for (const MalformedCase& bad : Cases()) {
    EXPECT_TRUE(names.insert(bad.name).second) << bad.name << " stands twice";
    const Split split(bad.bytes, {});
    const absl::Status status = Decode(split.spans()).status();
    EXPECT_EQ(status.code(), bad.code) << bad.name << ": " << status;
    const std::string message(status.message());
    EXPECT_LT(message.size(), 1000u) << bad.name;
    for (const std::string& part : bad.substrings) {
      EXPECT_THAT(message, HasSubstr(part)) << bad.name;
    }
    const Split next(good, {});
    EXPECT_TRUE(Decode(next.spans()).ok()) << "after " << bad.name;
  }
  EXPECT_GE(names.size(), 80u);
}

TEST_F(KserveDecode, SameStatusHoweverTheBytesAreCut) {
  std::mt19937 random(33);
  for (const MalformedCase& bad : Cases()) {
    const Split cut = Split::Random(bad.bytes, random);
    EXPECT_THAT(CompareInfer(bad.bytes, cut.spans()).difference, IsEmpty()) << bad.name;
  }
}

TEST_F(KserveDecode, DamagedRequestsAreRefusedOrWhatProtobufSaysTheyAre) {
  std::mt19937 random(34);
  int taken = 0;
  for (int round = 0; round < 10000; ++round) {
    std::string bytes = (round % 2 == 0 ? DenseInfer() : PackedInfer()).SerializeAsString();
    for (unsigned i = 0; i <= random() % 3; ++i) {
      bytes[random() % std::min<size_t>(bytes.size(), 160)] ^= static_cast<char>(1 << random() % 8);
    }
    const Split split = Split::Random(bytes, random);
    const Comparison comparison = CompareInfer(bytes, split.spans());
    ASSERT_THAT(comparison.difference, IsEmpty()) << "round " << round;
    taken += comparison.status.ok() ? 1 : 0;
  }
  // Damage of both kinds was seen.
  EXPECT_GT(taken, 50);
  EXPECT_LT(taken, 9000);
}

}  // namespace
}  // namespace attnd::testing
