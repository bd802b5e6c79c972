// The messages of ComputeStream, and how a request is put together from them.
#include "server/wire/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace attnd::testing {
namespace {

using server::BufferPool;
using server::TimePoint;
using server::wire::ByteSpan;
using server::wire::Limits;
using server::wire::PayloadBytes;
using server::wire::ScanStreamPart;
using server::wire::StreamPart;
using server::wire::Upload;
using ::testing::HasSubstr;

std::vector<ByteSpan> Spans(const std::string& bytes, size_t span_bytes) {
  std::vector<ByteSpan> spans;
  const auto* const data = reinterpret_cast<const unsigned char*>(bytes.data());
  for (size_t at = 0; at < bytes.size(); at += span_bytes) {
    spans.emplace_back(data + at, std::min(span_bytes, bytes.size() - at));
  }
  return spans;
}

std::string ChunkBytes(v1::Operand operand, int64_t offset_bytes, const std::string& data) {
  v1::ComputeStreamRequest message;
  message.mutable_chunk()->set_operand(operand);
  message.mutable_chunk()->set_offset_bytes(offset_bytes);
  message.mutable_chunk()->set_data(data);
  return message.SerializeAsString();
}

// Q of 32 bytes, K and V of 16 each: one head, head_dim 4.
v1::ComputeHeader Header() {
  v1::ComputeHeader header;
  for (v1::TensorSpec* spec : {header.mutable_q(), header.mutable_k(), header.mutable_v()}) {
    spec->set_dtype(v1::DATA_TYPE_FLOAT32);
    for (const int64_t extent : {1, 1, spec == header.mutable_q() ? 2 : 1, 4}) {
      spec->add_shape(extent);
    }
  }
  return header;
}

class UploadTest : public ::testing::Test {
 protected:
  explicit UploadTest(const v1::ComputeHeader& header = Header()) : pool_(1 << 20) {
    PayloadBytes sizes;
    auto request = server::wire::CheckStream(header, Limits(), TimePoint(), sizes);
    EXPECT_TRUE(request.ok()) << request.status();
    auto upload = Upload::Begin(*request, sizes, pool_);
    EXPECT_TRUE(upload.ok()) << upload.status();
    upload_ = *std::move(upload);
  }
  absl::Status Add(v1::Operand operand, int64_t offset_bytes, const std::string& data) {
    const std::string message = ChunkBytes(operand, offset_bytes, data);
    const auto spans = Spans(message, 3);
    const auto part = ScanStreamPart(spans, Limits());
    return part.ok() ? upload_->Add(spans, *part) : part.status();
  }
  std::string AddError(v1::Operand operand, int64_t offset_bytes, const std::string& data) {
    return std::string(Add(operand, offset_bytes, data).message());
  }

  BufferPool pool_;
  absl::optional<Upload> upload_;
};

TEST_F(UploadTest, ChunksInAnyOrderAreTheRequest) {
  EXPECT_TRUE(Add(v1::OPERAND_V, 8, "vvvvvvvv").ok());
  EXPECT_TRUE(Add(v1::OPERAND_Q, 20, "cccccccccccc").ok());
  EXPECT_TRUE(Add(v1::OPERAND_Q, 0, "a").ok());
  EXPECT_TRUE(Add(v1::OPERAND_K, 0, "kkkkkkkkkkkkkkkk").ok());
  EXPECT_TRUE(Add(v1::OPERAND_Q, 1, "bbbbbbbbbbbbbbbbbbb").ok());
  EXPECT_TRUE(Add(v1::OPERAND_Q, 32, "").ok());
  EXPECT_EQ(upload_->Finish().status().message(),
            "the chunks of v are 8 bytes of 16: byte 0 is missing");
  EXPECT_TRUE(Add(v1::OPERAND_V, 0, "uuuuuuuu").ok());
  EXPECT_EQ(upload_->received_bytes(), 64);
  const auto request = upload_->Finish();
  ASSERT_TRUE(request.ok()) << request.status();
  const auto text = [](const server::Buffer& buffer) {
    return std::string(reinterpret_cast<const char*>(buffer.data()),
                       static_cast<size_t>(buffer.size_bytes()));
  };
  EXPECT_EQ(text((*request)->q), "abbbbbbbbbbbbbbbbbbbcccccccccccc");
  EXPECT_EQ(text((*request)->k), "kkkkkkkkkkkkkkkk");
  EXPECT_EQ(text((*request)->v), "uuuuuuuuvvvvvvvv");
}

TEST_F(UploadTest, RefusesWhatOverlaps) {
  ASSERT_TRUE(Add(v1::OPERAND_Q, 8, "12345678").ok());
  EXPECT_EQ(AddError(v1::OPERAND_Q, 8, "12345678"),
            "a chunk of q is bytes 8 to 16; bytes 8 to 16 are there already");
  EXPECT_THAT(AddError(v1::OPERAND_Q, 15, "1"), HasSubstr("are there already"));
  EXPECT_THAT(AddError(v1::OPERAND_Q, 0, "123456789"), HasSubstr("are there already"));
  EXPECT_THAT(AddError(v1::OPERAND_Q, 0, std::string(32, 'x')), HasSubstr("are there already"));
  EXPECT_TRUE(Add(v1::OPERAND_Q, 16, "1").ok());
  EXPECT_TRUE(Add(v1::OPERAND_K, 8, "12345678").ok());
}

TEST_F(UploadTest, RefusesWhatIsBeyondTheEndOrNowhere) {
  EXPECT_EQ(AddError(v1::OPERAND_K, 9, "12345678"),
            "a chunk of k has 8 bytes at offset_bytes 9; k has 16 bytes");
  EXPECT_THAT(AddError(v1::OPERAND_K, -1, "1"), HasSubstr("offset_bytes -1"));
  EXPECT_THAT(AddError(v1::OPERAND_K, INT64_MAX, "1"), HasSubstr("k has 16 bytes"));
  EXPECT_THAT(AddError(v1::OPERAND_K, INT64_MIN, "1"), HasSubstr("k has 16 bytes"));
  EXPECT_THAT(AddError(v1::OPERAND_O, 0, "1"), HasSubstr("chunk.operand is OPERAND_O"));
  EXPECT_THAT(AddError(v1::OPERAND_UNSPECIFIED, 0, "1"), HasSubstr("OPERAND_UNSPECIFIED"));
  EXPECT_EQ(Add(static_cast<v1::Operand>(77), 0, "1").code(), absl::StatusCode::kUnimplemented);
}

TEST_F(UploadTest, NamesTheGap) {
  ASSERT_TRUE(Add(v1::OPERAND_Q, 0, "1234").ok());
  ASSERT_TRUE(Add(v1::OPERAND_Q, 8, std::string(24, 'x')).ok());
  EXPECT_EQ(upload_->Finish().status(),
            absl::InvalidArgumentError("the chunks of q are 28 bytes of 32: byte 4 is missing"));
}

TEST(Upload, TheListOfPiecesIsBounded) {
  v1::ComputeHeader header = Header();
  header.mutable_q()->set_shape(2, 1 << 12);  // 64 KiB
  PayloadBytes sizes;
  auto request = server::wire::CheckStream(header, Limits(), TimePoint(), sizes);
  ASSERT_TRUE(request.ok()) << request.status();
  BufferPool pool(1 << 20);
  auto upload = Upload::Begin(*request, sizes, pool);
  ASSERT_TRUE(upload.ok());
  absl::Status status;
  int64_t taken = 0;
  for (; status.ok() && taken < 2 * Upload::kMaxPieces; ++taken) {
    const std::string message = ChunkBytes(v1::OPERAND_Q, 2 * taken, "x");
    const auto spans = Spans(message, 64);
    status = upload->Add(spans, *ScanStreamPart(spans, Limits()));
  }
  EXPECT_EQ(taken, Upload::kMaxPieces + 1);
  EXPECT_THAT(status.message(), HasSubstr("more than 4096 gaps"));
}

TEST(Upload, TakesAllItsMemoryOrNone) {
  PayloadBytes sizes;
  auto request = server::wire::CheckStream(Header(), Limits(), TimePoint(), sizes);
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(sizes.total(), 64);
  BufferPool pool(128);  // two blocks
  EXPECT_EQ(Upload::Begin(*request, sizes, pool).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(pool.used_bytes(), 0);
  ASSERT_NE(*request, nullptr);
}

TEST(Upload, AnEmptyTensorNeedsNoChunk) {
  v1::ComputeHeader header = Header();
  header.mutable_q()->set_shape(2, 0);
  header.mutable_k()->set_shape(2, 0);
  header.mutable_v()->set_shape(2, 0);
  PayloadBytes sizes;
  auto request = server::wire::CheckStream(header, Limits(), TimePoint(), sizes);
  ASSERT_TRUE(request.ok()) << request.status();
  BufferPool pool(1 << 20);
  auto upload = Upload::Begin(*request, sizes, pool);
  ASSERT_TRUE(upload.ok());
  EXPECT_TRUE(upload->Finish().ok());
}

// However it is cut into spans.
TEST(StreamPart, HeaderOrChunk) {
  v1::ComputeStreamRequest message;
  *message.mutable_header() = Header();
  const std::string header = message.SerializeAsString();
  const std::string chunk = ChunkBytes(v1::OPERAND_K, 5, "data");
  for (size_t span_bytes = 1; span_bytes <= header.size(); ++span_bytes) {
    auto part = ScanStreamPart(Spans(header, span_bytes), Limits());
    ASSERT_TRUE(part.ok()) << part.status();
    ASSERT_TRUE(part->header != nullptr);
    EXPECT_EQ(part->header->SerializeAsString(), Header().SerializeAsString());
    part = ScanStreamPart(Spans(chunk, span_bytes), Limits());
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_TRUE(part->header == nullptr);
    EXPECT_EQ(part->operand, v1::OPERAND_K);
    EXPECT_EQ(part->offset_bytes, 5);
    EXPECT_EQ(chunk.substr(part->data.offset_bytes, part->data.size_bytes), "data");
  }
}

absl::Status ScanError(const std::string& bytes) {
  return ScanStreamPart(Spans(bytes, 7), Limits()).status();
}

TEST(StreamPart, RefusesWhatIsNone) {
  const std::string chunk = ChunkBytes(v1::OPERAND_K, 5, "data");
  EXPECT_THAT(ScanError("").message(), HasSubstr("holds 0 headers and 0 chunks"));
  EXPECT_THAT(ScanError(chunk + chunk).message(), HasSubstr("holds 0 headers and 2 chunks"));
  EXPECT_EQ(ScanError("\x18\x01" + chunk).code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(ScanError("\xc0\x3e\x01" + chunk).ok());  // field 1000: a hint
  for (size_t cut = 1; cut < chunk.size(); ++cut) {
    EXPECT_EQ(ScanError(chunk.substr(0, cut)).code(), absl::StatusCode::kInvalidArgument) << cut;
  }
  EXPECT_THAT(ScanError("\x12\x02\x0a\x05").message(), HasSubstr("not a Chunk"));
  EXPECT_EQ(ScanError(std::string("\x12\x02\x20\x01")).code(), absl::StatusCode::kUnimplemented);
  Limits limits;
  limits.max_header_bytes = 10;
  v1::ComputeStreamRequest message;
  *message.mutable_header() = Header();
  EXPECT_THAT(ScanStreamPart(Spans(message.SerializeAsString(), 99), limits).status().message(),
              HasSubstr("(max_header_bytes) is 10"));
}

// Every answer chunk is one that protobuf reads.
TEST(StreamChunk, HeadAndDataAreAMessage) {
  for (const int64_t offset_bytes : {int64_t{0}, int64_t{1} << 20, int64_t{5} << 30}) {
    const std::string data(300, 'x');
    v1::ComputeStreamResponse message;
    ASSERT_TRUE(message.ParseFromString(
        server::wire::EncodeChunkHead(v1::OPERAND_LSE, offset_bytes, 300) + data));
    EXPECT_EQ(message.chunk().operand(), v1::OPERAND_LSE);
    EXPECT_EQ(message.chunk().offset_bytes(), offset_bytes);
    EXPECT_EQ(message.chunk().data(), data);
  }
}

}  // namespace
}  // namespace attnd::testing
