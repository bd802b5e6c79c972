// Messages: what goes out is what protobuf would write, what comes in is checked.
#include "client/encode.h"

#include <atomic>
#include <limits>

#include "attnd/v1/attnd.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attnd::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Flatten(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

grpc::ByteBuffer ToBuffer(const std::string& bytes, size_t piece_bytes) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += piece_bytes) {
    slices.emplace_back(bytes.substr(at, piece_bytes));
  }
  if (slices.empty()) slices.emplace_back();
  return grpc::ByteBuffer(slices.data(), slices.size());
}

AttentionRequest SmallRequest(const std::vector<float>& data) {
  AttentionRequest request;
  request.q = {DType::kFloat32, {1, 1, 2, 2}, data.data()};
  request.k = request.v = request.q;
  return request;
}

TEST(Encode, WritesEveryFieldAsProtobufReadsIt) {
  const std::vector<float> q = {1, 2, 3, 4, 5, 6};
  const std::vector<uint16_t> k(4, 0x3c00), v(4, 0x4000);
  AttentionRequest request;
  request.q = {DType::kFloat32, {3, 1, 2}, q.data()};
  request.k = {DType::kFloat16, {2, 1, 2}, k.data()};
  request.v = {DType::kBFloat16, {2, 1, 2}, v.data()};
  request.layout = Layout::kTHD;
  request.causal = Causal::kTopLeft;
  request.window_left = 0;
  request.scale = 0.5f;
  request.softcap = 30.0f;
  request.alibi_slopes = {0.25f};
  request.cu_seqlens_q = {0, 3};
  request.cu_seqlens_kv = {0, 2};
  request.want_lse = true;
  request.priority = 3;
  request.request_id = "seven";
  const auto encoded = Encode(request);
  ASSERT_TRUE(encoded.ok()) << encoded.status();
  const std::string bytes = Flatten(ToMessage(*encoded, nullptr));
  EXPECT_EQ(encoded->size_bytes(), static_cast<int64_t>(bytes.size()));

  v1::ComputeRequest parsed;
  ASSERT_TRUE(parsed.ParseFromString(bytes));
  const v1::ComputeHeader& header = parsed.header();
  EXPECT_EQ(header.q().dtype(), v1::DATA_TYPE_FLOAT32);
  EXPECT_EQ(header.k().dtype(), v1::DATA_TYPE_FLOAT16);
  EXPECT_EQ(header.v().dtype(), v1::DATA_TYPE_BFLOAT16);
  EXPECT_THAT(header.q().shape(), ElementsAre(3, 1, 2));
  EXPECT_EQ(header.layout(), v1::LAYOUT_THD);
  EXPECT_EQ(header.causal(), v1::CAUSAL_ALIGNMENT_TOP_LEFT);
  EXPECT_TRUE(header.window().has_left());
  EXPECT_EQ(header.window().left(), 0);
  EXPECT_FALSE(header.window().has_right());
  EXPECT_EQ(header.scale(), 0.5f);
  EXPECT_EQ(header.softcap(), 30.0f);
  EXPECT_THAT(header.alibi_slopes(), ElementsAre(0.25f));
  EXPECT_THAT(header.cu_seqlens_q(), ElementsAre(0, 3));
  EXPECT_THAT(header.cu_seqlens_kv(), ElementsAre(0, 2));
  EXPECT_TRUE(header.want_lse());
  EXPECT_EQ(header.priority(), 3u);
  EXPECT_EQ(header.request_id(), "seven");
  EXPECT_EQ(parsed.q(), std::string(reinterpret_cast<const char*>(q.data()), 24));
  EXPECT_EQ(parsed.k(), std::string(reinterpret_cast<const char*>(k.data()), 8));
  EXPECT_EQ(parsed.v(), std::string(reinterpret_cast<const char*>(v.data()), 8));
}

TEST(Encode, LeavesAbsentOptionsAbsent) {
  const std::vector<float> data(4);
  const auto encoded = Encode(SmallRequest(data));
  ASSERT_TRUE(encoded.ok());
  v1::ComputeRequest parsed;
  ASSERT_TRUE(parsed.ParseFromString(Flatten(ToMessage(*encoded, nullptr))));
  EXPECT_FALSE(parsed.header().has_window());
  EXPECT_FALSE(parsed.header().has_scale());
  EXPECT_FALSE(parsed.header().has_softcap());
}

TEST(Encode, PayloadsAreNotCopiedAndKeptUntilGrpcLetsGo) {
  const std::vector<float> data(4096);
  AttentionRequest request = SmallRequest(data);
  request.q.shape = {1, 1, 2048, 2};
  const auto encoded = Encode(request);
  ASSERT_TRUE(encoded.ok());
  auto keep = std::make_shared<int>(0);
  const std::weak_ptr<int> held = keep;
  {
    const grpc::ByteBuffer message = ToMessage(*encoded, keep);
    keep.reset();
    EXPECT_FALSE(held.expired());
    std::vector<grpc::Slice> slices;
    ASSERT_TRUE(message.Dump(&slices).ok());
    bool found = false;
    for (const grpc::Slice& slice : slices) {
      found = found || static_cast<const void*>(slice.begin()) == data.data();
    }
    EXPECT_TRUE(found);
  }
  EXPECT_TRUE(held.expired());
}

TEST(Encode, SmallPayloadsAreCopied) {
  const std::vector<float> data(4);
  const auto encoded = Encode(SmallRequest(data));
  ASSERT_TRUE(encoded.ok());
  auto keep = std::make_shared<int>(0);
  const std::weak_ptr<int> held = keep;
  const grpc::ByteBuffer message = ToMessage(*encoded, keep);
  keep.reset();
  EXPECT_TRUE(held.expired());
}

std::vector<v1::ComputeStreamRequest> AllOf(StreamMessages messages) {
  std::vector<v1::ComputeStreamRequest> all;
  while (!messages.at_end()) {
    const grpc::ByteBuffer message = messages.Next();
    EXPECT_LE(static_cast<int64_t>(message.Length()), kMaxStreamMessageBytes);
    EXPECT_TRUE(all.emplace_back().ParseFromString(Flatten(message)));
  }
  return all;
}

TEST(StreamMessages, AreTheHeaderAndEveryByteOnceInChunks) {
  std::vector<float> q(700'000), kv(3);  // 2.7 MiB: three chunks, and one each
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i % 8191);
  AttentionRequest request;
  request.q = {DType::kFloat32, {1, 1, 700'000, 1}, q.data()};
  request.k = request.v = {DType::kFloat32, {1, 1, 3, 1}, kv.data()};
  request.transport = Transport::kStream;
  request.request_id = "seven";
  const auto encoded = Encode(request);
  ASSERT_TRUE(encoded.ok()) << encoded.status();
  const auto all = AllOf(StreamMessages(*encoded, nullptr));
  ASSERT_EQ(all.size(), 6u);
  EXPECT_EQ(all[0].header().request_id(), "seven");
  std::string bytes[3];
  for (size_t i = 1; i < all.size(); ++i) {
    ASSERT_TRUE(all[i].has_chunk());
    std::string& to = bytes[all[i].chunk().operand() - v1::OPERAND_Q];
    EXPECT_EQ(all[i].chunk().offset_bytes(), static_cast<int64_t>(to.size()));
    to += all[i].chunk().data();
  }
  EXPECT_EQ(bytes[0], std::string(reinterpret_cast<const char*>(q.data()), q.size() * 4));
  EXPECT_EQ(bytes[1].size(), 12u);
  EXPECT_EQ(bytes[2].size(), 12u);
}

TEST(StreamMessages, EmptyTensorsHaveNoChunks) {
  const std::vector<float> data(4);
  AttentionRequest request = SmallRequest(data);
  request.transport = Transport::kStream;
  request.q.shape[2] = 0;
  auto encoded = Encode(request);
  ASSERT_TRUE(encoded.ok()) << encoded.status();
  auto all = AllOf(StreamMessages(*encoded, nullptr));
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1].chunk().operand(), v1::OPERAND_K);
  request.k.shape[2] = request.v.shape[2] = 0;
  encoded = Encode(request);
  ASSERT_TRUE(encoded.ok()) << encoded.status();
  EXPECT_EQ(AllOf(StreamMessages(*encoded, nullptr)).size(), 1u);
}

TEST(StreamMessages, ChunksAreKeptUntilGrpcLetsGoAndSmallOnesCopied) {
  const std::vector<float> data(4096);
  AttentionRequest request = SmallRequest(data);
  request.q.shape = {1, 1, 2048, 2};
  request.transport = Transport::kStream;
  const auto encoded = Encode(request);
  ASSERT_TRUE(encoded.ok()) << encoded.status();
  auto keep = std::make_shared<int>(0);
  const std::weak_ptr<int> held = keep;
  StreamMessages messages(*encoded, std::move(keep));
  messages.Next();
  grpc::ByteBuffer q = messages.Next();
  grpc::ByteBuffer k = messages.Next();
  messages.LetGo();
  EXPECT_TRUE(messages.at_end());
  EXPECT_FALSE(held.expired());
  q.Clear();
  EXPECT_TRUE(held.expired());  // k is a copy
  EXPECT_GT(k.Length(), 16u);
}

TEST(Encode, RefusesWhatCannotBeSent) {
  const std::vector<float> data(4);
  AttentionRequest request = SmallRequest(data);
  request.k.data = nullptr;
  EXPECT_THAT(Encode(request).status().message(), HasSubstr("k.data is null"));

  request = SmallRequest(data);
  request.v.shape[2] = -3;
  EXPECT_EQ(Encode(request).status().message(), "v.shape[2] is -3, must be >= 0");

  request = SmallRequest(data);
  request.transport = Transport::kUnary;
  request.q.shape = {int64_t{1} << 29, 1, 1, 2};  // never read
  EXPECT_EQ(Encode(request).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Encode(request).status().message(),
              HasSubstr("2147483647 bytes that a message may have; Transport::kStream"));
  for (int64_t extent : {int64_t{1} << 62, std::numeric_limits<int64_t>::max()}) {
    request.transport = Transport::kAuto;
    request.q.shape = {extent, 1, 1, 2};
    EXPECT_EQ(Encode(request).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Encode(request).status().message(), HasSubstr("an address space has"));
  }
  request = SmallRequest(data);  // fits, but for the header
  request.transport = Transport::kUnary;
  request.q.shape = {1, 1, 1, ((int64_t{1} << 31) - 1 - 40) / 4};
  EXPECT_EQ(Encode(request).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Encode, AZeroExtentNeedsNoData) {
  AttentionRequest request;
  request.q = request.k = request.v = {DType::kFloat32, {0, 1, 2, 2}, nullptr};
  const auto encoded = Encode(request);
  ASSERT_TRUE(encoded.ok()) << encoded.status();
  v1::ComputeRequest parsed;
  EXPECT_TRUE(parsed.ParseFromString(Flatten(ToMessage(*encoded, nullptr))));
}

class DecodeTest : public ::testing::Test {
 protected:
  DecodeTest() : request_(SmallRequest(data_)) {
    v1::ComputeResponseHeader* header = response_.mutable_header();
    header->mutable_o()->set_dtype(v1::DATA_TYPE_FLOAT32);
    for (int64_t extent : {1, 1, 2, 2}) header->mutable_o()->add_shape(extent);
    header->set_kernel("attn_fwd_f32_d64_full_fake");
    header->mutable_timing()->set_total_us(11);
    header->set_batch_id(5);
    response_.set_o(std::string(reinterpret_cast<const char*>(data_.data()), 16));
  }

  absl::StatusOr<AttentionResult> Decode(const std::string& bytes, size_t piece_bytes = 1 << 20) {
    return DecodeAnswer(ExpectedAnswer(request_), ToBuffer(bytes, piece_bytes));
  }
  std::string Error() {
    return std::string(Decode(response_.SerializeAsString()).status().message());
  }

  const std::vector<float> data_ = {1, 2, 3, 4};
  AttentionRequest request_;
  v1::ComputeResponse response_;
};

TEST_F(DecodeTest, ReadsOnePieceOrMany) {
  for (size_t piece_bytes : {1, 2, 7, 1000}) {
    const auto result = Decode(response_.SerializeAsString(), piece_bytes);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(std::string(result->o.bytes.begin(), result->o.bytes.end()), response_.o());
    EXPECT_THAT(result->o.shape, ElementsAre(1, 1, 2, 2));
    EXPECT_EQ(result->kernel, "attn_fwd_f32_d64_full_fake");
    EXPECT_EQ(result->timing.total_us, 11);
    EXPECT_EQ(result->batch_id, 5u);
    EXPECT_EQ(result->received_bytes, static_cast<int64_t>(response_.ByteSizeLong()));
  }
}

TEST_F(DecodeTest, ReadsAnyOrderTakesTheLastAndPassesOverNewFields) {
  v1::ComputeResponse payload, header;
  payload.set_o(std::string(16, 'x'));
  std::string bytes = payload.SerializeAsString();
  bytes += std::string("\xfa\x01\x03new", 6);  // field 31
  bytes += response_.SerializeAsString();
  const auto result = Decode(bytes);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(std::string(result->o.bytes.begin(), result->o.bytes.end()), response_.o());
}

TEST_F(DecodeTest, EveryTruncationIsAnError) {
  const std::string bytes = response_.SerializeAsString();
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_EQ(Decode(bytes.substr(0, length)).status().code(), absl::StatusCode::kInternal)
        << length;
  }
}

TEST_F(DecodeTest, ALengthThatLiesCostsNoMemory) {
  const auto result = Decode(std::string("\x12\xff\xff\xff\xff\x07", 6));  // o of 2 GB
  EXPECT_THAT(result.status().message(), HasSubstr("are not a ComputeResponse"));
}

TEST_F(DecodeTest, AnswersToSomethingElseAreRefused) {
  response_.set_o("short");
  EXPECT_THAT(Error(), HasSubstr("o has 5 bytes, its shape means 16"));
  response_.mutable_header()->mutable_o()->set_shape(3, 0);
  response_.set_o("");
  EXPECT_THAT(Error(), HasSubstr("o is float32 [1,1,2,0], asked for float32 [1,1,2,2]"));
  response_.mutable_header()->mutable_o()->set_dtype(v1::DATA_TYPE_UNSPECIFIED);
  EXPECT_THAT(Error(), HasSubstr("o has dtype number 0"));
}

TEST_F(DecodeTest, LseIsThereExactlyWhenWanted) {
  request_.want_lse = true;
  EXPECT_THAT(Error(), HasSubstr("lse is missing"));
  v1::TensorSpec* lse = response_.mutable_header()->mutable_lse();
  lse->set_dtype(v1::DATA_TYPE_FLOAT32);
  lse->add_shape(2);
  EXPECT_THAT(Error(), HasSubstr("lse has 0 bytes, its shape means 8"));
  response_.set_lse(std::string(8, '\0'));
  const auto result = Decode(response_.SerializeAsString());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->lse->shape, ElementsAre(2));
  request_.want_lse = false;
  EXPECT_THAT(Error(), HasSubstr("lse was not asked for"));
}

class StreamedAnswerTest : public ::testing::Test {
 protected:
  StreamedAnswerTest() : data_{1, 2, 3, 4}, request_(SmallRequest(data_)) {
    v1::ComputeStreamResponse part;
    part.mutable_header()->mutable_o()->set_dtype(v1::DATA_TYPE_FLOAT32);
    for (const int64_t extent : request_.q.shape) {
      part.mutable_header()->mutable_o()->add_shape(extent);
    }
    EXPECT_TRUE(Add(part.SerializeAsString()).ok());
  }

  absl::Status Add(const std::string& message) {
    return answer_.Add(ExpectedAnswer(request_), ToBuffer(message, 3));
  }
  absl::Status AddChunk(v1::Operand operand, int64_t offset_bytes, const std::string& data) {
    v1::ComputeStreamResponse part;
    part.mutable_chunk()->set_operand(operand);
    part.mutable_chunk()->set_offset_bytes(offset_bytes);
    part.mutable_chunk()->set_data(data);
    return Add(part.SerializeAsString());
  }

  const std::vector<float> data_;
  AttentionRequest request_;
  StreamedAnswer answer_;
};

TEST_F(StreamedAnswerTest, TakesChunksInAnyOrder) {
  EXPECT_TRUE(AddChunk(v1::OPERAND_O, 10, "klmnop").ok());
  EXPECT_TRUE(AddChunk(v1::OPERAND_O, 0, "abcdefgh").ok());
  // The data in front of its place, and a field of a later version.
  v1::ComputeStreamResponse place;
  place.mutable_chunk()->set_operand(v1::OPERAND_O);
  place.mutable_chunk()->set_offset_bytes(8);
  const std::string inside = place.chunk().SerializeAsString();
  const std::string data = "\x1a\x02ij\xa0\x06\x07";
  EXPECT_TRUE(
      Add(std::string("\x12") + static_cast<char>(data.size() + inside.size()) + data + inside)
          .ok());
  const auto result = answer_.Finish();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(std::string(result->o.bytes.begin(), result->o.bytes.end()), "abcdefghijklmnop");
}

TEST_F(StreamedAnswerTest, RefusesWhatDoesNotFit) {
  EXPECT_THAT(std::string(AddChunk(v1::OPERAND_O, 10, "1234567").message()),
              HasSubstr("beyond the 16 bytes"));
  EXPECT_THAT(std::string(AddChunk(v1::OPERAND_O, -1, "1").message()), HasSubstr("at -1"));
  EXPECT_THAT(std::string(AddChunk(v1::OPERAND_Q, 0, "1").message()), HasSubstr("operand number"));
  EXPECT_THAT(std::string(AddChunk(v1::OPERAND_LSE, 0, "1").message()), HasSubstr("not asked for"));
  EXPECT_THAT(std::string(Add("\x12\x7f").message()), HasSubstr("not a ComputeStreamResponse"));
  EXPECT_TRUE(AddChunk(v1::OPERAND_O, 4, "1234").ok());
  EXPECT_THAT(std::string(answer_.Finish().status().message()), HasSubstr("lack 12 bytes"));
}

TEST_F(StreamedAnswerTest, ChunksThatComeTwiceLeaveNoGap) {
  EXPECT_TRUE(AddChunk(v1::OPERAND_O, 0, "12345678").ok());
  EXPECT_TRUE(AddChunk(v1::OPERAND_O, 0, "12345678").ok());
  EXPECT_THAT(std::string(answer_.Finish().status().message()), HasSubstr("lack 8 bytes"));
}

// Where nothing tells from the room itself what has been written there.
TEST_F(StreamedAnswerTest, ChunksThatComeTwiceLeaveNoGapInTheCallersMemory) {
  char o[16] = {};
  request_.o_place = OutputView{o, nullptr};
  EXPECT_TRUE(AddChunk(v1::OPERAND_O, 8, "12345678").ok());
  EXPECT_TRUE(AddChunk(v1::OPERAND_O, 8, "12345678").ok());
  EXPECT_THAT(std::string(answer_.Finish().status().message()), HasSubstr("lack 8 bytes"));
}

}  // namespace
}  // namespace attnd::client
