// An encoded answer, its pieces joined, is what a parser of the Open Inference Protocol reads.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/wire/kserve.h"
#include "tests/wire/kserve_cases.h"
#include "tests/wire/messages.h"

namespace attnd::testing {
namespace {

using inference::ModelInferRequest;
using inference::ModelInferResponse;
using inference::ModelStreamInferResponse;
using server::Answer;
using server::Request;
using server::wire::EncodedAnswer;
using server::wire::Inference;
using ::testing::ElementsAre;

class KserveEncode : public ::testing::Test {
 protected:
  void Decode(const ModelInferRequest& message) {
    const Split split(message.SerializeAsString(), {});
    auto request = inference_.Decode(split.spans(), {}, {}, pool_);
    ASSERT_TRUE(request.ok()) << request.status();
    request_ = *std::move(request);
  }
  Answer MakeAnswer() {
    Answer answer;
    answer.o = Filled(request_->output.o_bytes, 'o');
    answer.lse = Filled(request_->output.lse_bytes, 'l');
    answer.timing = {1, 2, 3, 4, 5};
    answer.kernel = "attn_fwd_f32_d64_full_avx2";
    answer.device = "cpu";
    answer.batch_id = 77;
    answer.batch_size = 6;
    return answer;
  }
  server::Buffer Filled(int64_t size_bytes, char with) {
    auto buffer = pool_.Allocate(size_bytes);
    std::fill_n(buffer->data(), size_bytes, static_cast<unsigned char>(with));
    return *std::move(buffer);
  }
  static std::string Join(const EncodedAnswer& encoded, const Answer& answer) {
    const auto bytes = [](const server::Buffer& buffer) {
      return std::string(reinterpret_cast<const char*>(buffer.data()),
                         static_cast<size_t>(buffer.size_bytes()));
    };
    return encoded.head + bytes(answer.o) + encoded.middle + bytes(answer.lse);
  }
  ModelInferResponse RoundTrip() {
    Answer answer = MakeAnswer();
    const EncodedAnswer encoded = inference_.Encode(*request_, answer);
    ModelInferResponse response;
    EXPECT_TRUE(response.ParseFromString(Join(encoded, answer)));
    return response;
  }

  server::BufferPool pool_{int64_t{1} << 24};
  Inference inference_;
  std::unique_ptr<Request> request_;
};

TEST_F(KserveEncode, EveryField) {
  ModelInferRequest message = DenseInfer();
  message.set_id("mine");
  Decode(message);
  const ModelInferResponse response = RoundTrip();
  EXPECT_EQ(response.model_name(), "attention");
  EXPECT_EQ(response.model_version(), "1");
  EXPECT_EQ(response.id(), "mine");
  ASSERT_EQ(response.outputs_size(), 2);
  EXPECT_EQ(response.outputs(0).name(), "O");
  EXPECT_EQ(response.outputs(0).datatype(), "FP32");
  EXPECT_THAT(response.outputs(0).shape(), ElementsAre(2, 4, 3, 8));
  EXPECT_EQ(response.outputs(1).name(), "LSE");
  EXPECT_EQ(response.outputs(1).datatype(), "FP32");
  EXPECT_THAT(response.outputs(1).shape(), ElementsAre(2, 4, 3));
  EXPECT_THAT(response.raw_output_contents(),
              ElementsAre(std::string(768, 'o'), std::string(96, 'l')));
  const auto& parameters = response.parameters();
  EXPECT_EQ(parameters.at("queue_us").int64_param(), 1);
  EXPECT_EQ(parameters.at("run_us").int64_param(), 3);
  EXPECT_EQ(parameters.at("total_us").int64_param(), 5);
  EXPECT_EQ(parameters.at("kernel").string_param(), "attn_fwd_f32_d64_full_avx2");
  EXPECT_EQ(parameters.at("batch_id").uint64_param(), 77u);
  EXPECT_EQ(parameters.at("batch_size").int64_param(), 6);
  EXPECT_EQ(parameters.count("triton_final_response"), 0u);
}

TEST_F(KserveEncode, OnlyWhatIsAskedFor) {
  ModelInferRequest message = PackedInfer();
  message.add_outputs()->set_name("O");
  Decode(message);
  ModelInferResponse response = RoundTrip();
  ASSERT_EQ(response.outputs_size(), 1);
  EXPECT_EQ(response.outputs(0).datatype(), "FP16");
  EXPECT_THAT(response.outputs(0).shape(), ElementsAre(7, 4, 8));
  EXPECT_THAT(response.raw_output_contents(), ElementsAre(std::string(448, 'o')));

  message.clear_outputs();
  message.add_outputs()->set_name("LSE");
  Decode(message);
  response = RoundTrip();
  ASSERT_EQ(response.outputs_size(), 1);
  EXPECT_EQ(response.outputs(0).name(), "LSE");
  EXPECT_THAT(response.outputs(0).shape(), ElementsAre(4, 7));
  EXPECT_THAT(response.raw_output_contents(), ElementsAre(std::string(112, 'l')));
}

TEST_F(KserveEncode, K17AnEmptyAnswerHasItsRawContentsToo) {
  ModelInferRequest message = DenseInfer();
  message.mutable_inputs(0)->set_shape(2, 0);
  message.set_raw_input_contents(0, "");
  Decode(message);
  const ModelInferResponse response = RoundTrip();
  EXPECT_THAT(response.outputs(0).shape(), ElementsAre(2, 4, 0, 8));
  EXPECT_THAT(response.raw_output_contents(), ElementsAre("", ""));
}

TEST_F(KserveEncode, StreamedItIsTheSameWithinAnotherMessage) {
  ModelInferRequest message = DenseInfer();
  message.set_id("streamed");
  Decode(message);
  Answer answer = MakeAnswer();
  const EncodedAnswer encoded = inference_.EncodeStreamed(*request_, answer);
  ModelStreamInferResponse response;
  ASSERT_TRUE(response.ParseFromString(Join(encoded, answer)));
  EXPECT_EQ(response.error_message(), "");
  EXPECT_EQ(response.infer_response().id(), "streamed");
  EXPECT_THAT(response.infer_response().raw_output_contents(),
              ElementsAre(std::string(768, 'o'), std::string(96, 'l')));
  EXPECT_TRUE(response.infer_response().parameters().at("triton_final_response").bool_param());
}

TEST_F(KserveEncode, AFailureSaysWhatAndWhose) {
  ModelInferRequest message = DenseInfer();
  message.set_id("bad");
  message.mutable_inputs(0)->set_shape(0, -1);
  const Split split(message.SerializeAsString(), {});
  const absl::Status status = inference_.Decode(split.spans(), {}, {}, pool_).status();
  ASSERT_FALSE(status.ok());
  ModelStreamInferResponse response;
  ASSERT_TRUE(response.ParseFromString(inference_.EncodeFailure(status)));
  EXPECT_EQ(response.error_message(), "INVALID_ARGUMENT: " + std::string(status.message()));
  EXPECT_EQ(response.infer_response().id(), "bad");
  EXPECT_EQ(response.infer_response().outputs_size(), 0);
}

}  // namespace
}  // namespace attnd::testing
