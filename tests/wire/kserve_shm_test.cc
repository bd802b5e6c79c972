// Tensors of a ModelInferRequest in the caller's shared memory: read once, checked as others are,
// answered there.
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/regions/shm_host.h"
#include "server/wire/kserve.h"
#include "tests/regions/test_object.h"
#include "tests/wire/kserve_cases.h"
#include "tests/wire/messages.h"

namespace attnd::testing {
namespace {

using inference::ModelInferRequest;
using inference::ModelInferResponse;
using server::Answer;
using server::Buffer;
using server::Request;
using server::TestObject;
using server::wire::EncodedAnswer;
using server::wire::Inference;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Bytes(const Buffer& buffer) {
  return {reinterpret_cast<const char*>(buffer.data()), static_cast<size_t>(buffer.size_bytes())};
}

class KserveShm : public ::testing::Test {
 protected:
  KserveShm() {
    const server::ShmRegion region{"r", object_.key(), 64, static_cast<uint64_t>(kRegionBytes)};
    EXPECT_TRUE(
        host_.names.Register(region, *server::ShmOfCall(&host_, "unix:", "t").Caller()).ok());
  }

  absl::Status Decode(const ModelInferRequest& message, int64_t max_shared = Inference::kAllBytes) {
    const Split split(message.SerializeAsString(), {});
    auto request = inference_.Decode(split.spans(), {}, {}, pool_, max_shared);
    if (request.ok()) request_ = *std::move(request);
    return request.status();
  }
  // Moves raw contents of input `index` to the region.
  void Share(ModelInferRequest& message, int index, int64_t offset_bytes) {
    auto& all = *message.mutable_raw_input_contents();
    const int raw = index - shared_;
    const std::string bytes = all[raw];
    EXPECT_EQ(pwrite(object_.fd(), bytes.data(), bytes.size(), 64 + offset_bytes),
              static_cast<ssize_t>(bytes.size()));
    all.erase(all.begin() + raw);
    ++shared_;
    Put(*message.mutable_inputs(index)->mutable_parameters(), offset_bytes,
        static_cast<int64_t>(bytes.size()));
  }
  static void Put(google::protobuf::Map<std::string, inference::InferParameter>& parameters,
                  int64_t offset_bytes, int64_t size_bytes) {
    parameters["shared_memory_region"].set_string_param("r");
    parameters["shared_memory_byte_size"].set_int64_param(size_bytes);
    if (offset_bytes != 0) parameters["shared_memory_offset"].set_int64_param(offset_bytes);
  }
  static void ExpectError(const absl::Status& status, absl::StatusCode code, const char* text) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
  Buffer Filled(int64_t size_bytes, char with) {
    auto buffer = pool_.Allocate(size_bytes);
    std::fill_n(buffer->data(), size_bytes, static_cast<unsigned char>(with));
    return *std::move(buffer);
  }

  static constexpr int64_t kRegionBytes = 8192;
  const TestObject object_{"kserve", 64 + kRegionBytes};
  server::ShmHost host_{server::ShmLimits{}};
  server::BufferPool pool_{int64_t{1} << 24};
  Inference inference_{server::ShmOfCall(&host_, "unix:", "t")};
  std::unique_ptr<Request> request_;
  int shared_ = 0;
};

TEST_F(KserveShm, InputsMeanWhatTheyMeanInTheMessage) {
  for (const ModelInferRequest& plain : {DenseInfer(), PackedInfer()}) {
    ASSERT_TRUE(Decode(plain).ok());
    const auto in_message = std::move(request_);
    EXPECT_EQ(inference_.shared_input_bytes(), 0);
    ModelInferRequest shared = plain;
    int64_t offset_bytes = 0;
    shared_ = 0;
    for (int i = 0; i < plain.inputs_size(); ++i) {
      Share(shared, i, offset_bytes);
      offset_bytes += static_cast<int64_t>(plain.raw_input_contents(i).size());
    }
    ASSERT_EQ(shared.raw_input_contents_size(), 0);
    const absl::Status status = Decode(shared);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(Bytes(request_->q), Bytes(in_message->q));
    EXPECT_EQ(Bytes(request_->k), Bytes(in_message->k));
    EXPECT_EQ(Bytes(request_->v), Bytes(in_message->v));
    EXPECT_EQ(request_->problems.size(), in_message->problems.size());
    EXPECT_EQ(inference_.shared_input_bytes(), request_->payload_bytes());
  }
}

TEST_F(KserveShm, RawContentsCountTheOthersAlone) {
  ModelInferRequest message = DenseInfer();
  ASSERT_TRUE(Decode(message).ok());
  const auto in_message = std::move(request_);
  Share(message, 1, 128);
  ASSERT_EQ(message.raw_input_contents_size(), 2);
  ASSERT_TRUE(Decode(message).ok());
  EXPECT_EQ(Bytes(request_->k), Bytes(in_message->k));
  EXPECT_EQ(Bytes(request_->v), Bytes(in_message->v));
  message.add_raw_input_contents("x");
  ExpectError(Decode(message), absl::StatusCode::kInvalidArgument, "3 entries; 2 inputs");
}

TEST_F(KserveShm, WhatIsWrongIsNamed) {
  ModelInferRequest good = DenseInfer();
  Share(good, 0, 0);
  auto& q = *good.mutable_inputs(0)->mutable_parameters();
  const int64_t q_bytes = q.at("shared_memory_byte_size").int64_param();
  const auto with = [&](const char* name, int64_t value) {
    ModelInferRequest message = good;
    (*message.mutable_inputs(0)->mutable_parameters())[name].set_int64_param(value);
    return message;
  };
  ExpectError(Decode(with("shared_memory_byte_size", q_bytes - 4)),
              absl::StatusCode::kInvalidArgument, std::to_string(q_bytes - 4).c_str());
  ExpectError(Decode(with("shared_memory_offset", kRegionBytes)),
              absl::StatusCode::kInvalidArgument, "\"r\": offset 8192");
  ExpectError(Decode(with("shared_memory_offset", std::numeric_limits<int64_t>::max())),
              absl::StatusCode::kInvalidArgument, "9223372036854775807");
  ModelInferRequest other = good;
  (*other.mutable_inputs(0)->mutable_parameters())["shared_memory_region"].set_string_param("x");
  ExpectError(Decode(other), absl::StatusCode::kNotFound, "input \"Q\"");
  other = good;
  other.mutable_inputs(0)->mutable_contents()->add_fp32_contents(1);
  ExpectError(Decode(other), absl::StatusCode::kInvalidArgument, "shared_memory_region");
  // S54: shrunk after it was registered.
  object_.Resize(64 + q_bytes - 1);
  ExpectError(Decode(good), absl::StatusCode::kDataLoss, "input \"Q\"");
  object_.Resize(64 + q_bytes);
  EXPECT_TRUE(Decode(good).ok());
}

TEST_F(KserveShm, WithoutTheFlagNoneIsTaken) {
  ModelInferRequest message = DenseInfer();
  Share(message, 0, 0);
  inference_ = Inference();
  ExpectError(Decode(message), absl::StatusCode::kUnimplemented, "--allow_shm_names");
  message = DenseInfer();
  auto& output = *message.add_outputs();
  output.set_name("O");
  Put(*output.mutable_parameters(), 0, kRegionBytes);
  ExpectError(Decode(message), absl::StatusCode::kUnimplemented, "output \"O\"");
}

TEST_F(KserveShm, MuchIsCopiedElsewhere) {
  ModelInferRequest message = DenseInfer();
  const auto q_bytes = static_cast<int64_t>(message.raw_input_contents(0).size());
  Share(message, 0, 0);
  ExpectError(Decode(message, q_bytes - 1), absl::StatusCode::kResourceExhausted, "copied");
  EXPECT_EQ(inference_.shared_input_bytes(), q_bytes);
  EXPECT_TRUE(Decode(message, q_bytes).ok());
  // What is wrong is told at once.
  message.mutable_inputs(0)->set_datatype("FP64");
  EXPECT_EQ(Decode(message, 0).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(KserveShm, OutputsGoThereAndTheResponseSaysSo) {
  ModelInferRequest message = DenseInfer();
  for (const auto& [name, offset] : {std::pair("LSE", 4096), std::pair("O", 8)}) {
    auto& output = *message.add_outputs();
    output.set_name(name);
    Put(*output.mutable_parameters(), offset, 4096 - 8);
  }
  ASSERT_TRUE(Decode(message).ok());
  const server::OutputSpec& spec = request_->output;
  Answer answer;
  answer.o = Filled(spec.o_bytes, 'o');
  answer.lse = Filled(spec.lse_bytes, 'l');
  const auto outputs = inference_.TakeSharedOutputs(answer);
  EXPECT_EQ(outputs.size_bytes(), spec.o_bytes + spec.lse_bytes);
  ASSERT_TRUE(inference_.PlaceOutputs(outputs).ok());
  EXPECT_EQ(object_.Read(64 + 8, spec.o_bytes),
            std::string(static_cast<size_t>(spec.o_bytes), 'o'));
  EXPECT_EQ(object_.Read(64 + 4096, spec.lse_bytes),
            std::string(static_cast<size_t>(spec.lse_bytes), 'l'));
  EXPECT_EQ(object_.Read(64 + 8 + spec.o_bytes, 1), std::string(1, '\0'));

  const EncodedAnswer encoded = inference_.Encode(*request_, answer);
  EXPECT_EQ(answer.o.size_bytes() + answer.lse.size_bytes(), 0);
  ModelInferResponse response;
  ASSERT_TRUE(response.ParseFromString(encoded.head + encoded.middle));
  ASSERT_EQ(response.outputs_size(), 2);
  // Triton's clients count on one for each output.
  ASSERT_EQ(response.raw_output_contents_size(), 2);
  EXPECT_EQ(response.raw_output_contents(0) + response.raw_output_contents(1), "");
  const auto& o = response.outputs(0);
  EXPECT_EQ(o.name(), "O");
  EXPECT_EQ(o.parameters().at("shared_memory_region").string_param(), "r");
  EXPECT_EQ(o.parameters().at("shared_memory_byte_size").int64_param(), spec.o_bytes);
  EXPECT_EQ(o.parameters().at("shared_memory_offset").int64_param(), 8);
}

TEST_F(KserveShm, OneOutputThereAndOneInTheAnswer) {
  ModelInferRequest message = DenseInfer();
  auto& o = *message.add_outputs();
  o.set_name("O");
  Put(*o.mutable_parameters(), 0, kRegionBytes);
  message.add_outputs()->set_name("LSE");
  ASSERT_TRUE(Decode(message).ok());
  Answer answer;
  answer.o = Filled(request_->output.o_bytes, 'o');
  answer.lse = Filled(request_->output.lse_bytes, 'l');
  ASSERT_TRUE(inference_.PlaceOutputs(inference_.TakeSharedOutputs(answer)).ok());
  const EncodedAnswer encoded = inference_.EncodeStreamed(*request_, answer);
  inference::ModelStreamInferResponse streamed;
  ASSERT_TRUE(streamed.ParseFromString(encoded.head + Bytes(answer.o) + encoded.middle +
                                       Bytes(answer.lse)));
  const ModelInferResponse& response = streamed.infer_response();
  ASSERT_EQ(response.raw_output_contents_size(), 2);
  EXPECT_EQ(response.raw_output_contents(0), "");
  EXPECT_EQ(response.raw_output_contents(1).size(),
            static_cast<size_t>(request_->output.lse_bytes));
  EXPECT_EQ(response.outputs(1).parameters_size(), 0);
}

TEST_F(KserveShm, AnOutputThatDoesNotFitIsRefusedAndOneThatShrinksIsAnError) {
  ModelInferRequest message = DenseInfer();
  auto& output = *message.add_outputs();
  output.set_name("O");
  const auto o_bytes = static_cast<int64_t>(message.raw_input_contents(0).size());
  Put(*output.mutable_parameters(), 0, o_bytes - 1);
  const absl::Status status = Decode(message);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("output O"), HasSubstr(std::to_string(o_bytes - 1)),
                    HasSubstr(std::to_string(o_bytes))));
  Put(*output.mutable_parameters(), 0, o_bytes);
  ASSERT_TRUE(Decode(message).ok());
  object_.Resize(64);
  Answer answer;
  answer.o = Filled(o_bytes, 'o');
  ExpectError(inference_.PlaceOutputs(inference_.TakeSharedOutputs(answer)),
              absl::StatusCode::kDataLoss, "output O");
}

}  // namespace
}  // namespace attnd::testing
