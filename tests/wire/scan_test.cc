// S56: a message is read by protobuf's rules, whatever wrote it.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/wire/messages.h"

namespace attnd::testing {
namespace {

using server::wire::Limits;
using server::wire::Payload;
using server::wire::ScannedRequest;
using ::testing::HasSubstr;

absl::StatusOr<ScannedRequest> Scan(const std::string& bytes, const Limits& limits = {}) {
  return server::wire::Scan(Split(bytes, {}).spans(), limits);
}

std::string At(const std::string& bytes, const Payload& payload) {
  EXPECT_TRUE(payload.present);
  return bytes.substr(static_cast<size_t>(payload.offset_bytes),
                      static_cast<size_t>(payload.size_bytes));
}

std::string Header(int64_t timeout_us) {
  return BytesField(1, VarintField(14, static_cast<uint64_t>(timeout_us)));
}

TEST(Scan, FindsHeaderAndPayloads) {
  const std::string bytes =
      Header(7) + BytesField(2, "qq") + BytesField(3, "k") + BytesField(4, "");
  const auto scanned = Scan(bytes);
  ASSERT_TRUE(scanned.ok()) << scanned.status();
  EXPECT_EQ(scanned->header->timeout_us(), 7);
  EXPECT_EQ(At(bytes, scanned->q), "qq");
  EXPECT_EQ(At(bytes, scanned->k), "k");
  EXPECT_EQ(At(bytes, scanned->v), "");
}

TEST(Scan, AbsentPayloadIsNotThere) {
  const auto scanned = Scan(Header(7) + BytesField(3, "k"));
  ASSERT_TRUE(scanned.ok()) << scanned.status();
  EXPECT_FALSE(scanned->q.present);
  EXPECT_EQ(scanned->q.size_bytes, 0);
  EXPECT_TRUE(scanned->k.present);
}

TEST(Scan, PayloadsMayComeBeforeTheHeader) {
  const std::string bytes = BytesField(4, "v") + BytesField(2, "q") + Header(7);
  const auto scanned = Scan(bytes);
  ASSERT_TRUE(scanned.ok()) << scanned.status();
  EXPECT_EQ(scanned->header->timeout_us(), 7);
  EXPECT_EQ(At(bytes, scanned->q), "q");
  EXPECT_EQ(At(bytes, scanned->v), "v");
}

TEST(Scan, LastPayloadWins) {
  const std::string bytes = BytesField(2, "first") + Header(7) + BytesField(2, "2nd");
  const auto scanned = Scan(bytes);
  ASSERT_TRUE(scanned.ok()) << scanned.status();
  EXPECT_EQ(At(bytes, scanned->q), "2nd");
}

TEST(Scan, HeadersMerge) {
  const std::string bytes =
      BytesField(1, VarintField(14, 7) + BytesField(15, "a") + BytesField(6, VarintField(1, 5))) +
      BytesField(2, "q") + BytesField(1, VarintField(13, 2) + BytesField(6, VarintField(2, 6))) +
      BytesField(1, VarintField(14, 8));
  const auto scanned = Scan(bytes);
  ASSERT_TRUE(scanned.ok()) << scanned.status();
  EXPECT_EQ(scanned->header->timeout_us(), 8);  // a scalar: the last wins
  EXPECT_EQ(scanned->header->request_id(), "a");
  EXPECT_EQ(scanned->header->priority(), 2u);
  EXPECT_EQ(scanned->header->window().left(), 5);  // a message: merged
  EXPECT_EQ(scanned->header->window().right(), 6);
}

TEST(Scan, RepeatedScalarsPackedAndUnpacked) {
  const std::string bytes = BytesField(
      1, VarintField(10, 0) + BytesField(10, Varint(3) + Varint(300)) + VarintField(10, 301));
  const auto scanned = Scan(bytes);
  ASSERT_TRUE(scanned.ok()) << scanned.status();
  EXPECT_THAT(scanned->header->cu_seqlens_q(), ::testing::ElementsAre(0, 3, 300, 301));
}

TEST(Scan, OverlongVarintsAreRead) {
  const std::string bytes = std::string("\x8a\x00", 2) + std::string("\x82\x80\x00", 3) +
                            VarintField(14, 7) + Tag(2, 2) +
                            std::string("\x81\x80\x80\x80\x00", 5) + "q";
  const auto scanned = Scan(bytes);
  ASSERT_TRUE(scanned.ok()) << scanned.status();
  EXPECT_EQ(scanned->header->timeout_us(), 7);
  EXPECT_EQ(At(bytes, scanned->q), "q");
}

TEST(Scan, HintsAreIgnoredAtEveryDepth) {
  const std::string hints = VarintField(1000, 1) + Fixed32Field(1001, 1) + Fixed64Field(5000, 1) +
                            BytesField(536870911, "largest number") +
                            GroupField(1002, BytesField(2, "not q") + VarintField(5, 1));
  const std::string bytes =
      hints +
      BytesField(1, hints + VarintField(14, 7) + BytesField(1, hints) + BytesField(6, hints)) +
      BytesField(2, "q") + hints;
  const auto scanned = Scan(bytes);
  ASSERT_TRUE(scanned.ok()) << scanned.status();
  EXPECT_EQ(scanned->header->timeout_us(), 7);
  EXPECT_EQ(At(bytes, scanned->q), "q");
}

TEST(Scan, AnUnknownFieldIsNamedByItsNumber) {
  const auto status = Scan(BytesField(1, BytesField(2, VarintField(999, 1)))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("header.k field 999"));
}

TEST(Scan, MessageLimitNamesBothNumbers) {
  Limits limits;
  limits.max_message_bytes = 100;
  const std::string at_limit = Header(7) + BytesField(2, std::string(94, 'q'));
  ASSERT_EQ(at_limit.size(), 100u);
  EXPECT_TRUE(Scan(at_limit, limits).ok());
  const auto status = Scan(at_limit + "x", limits).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("101 bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("is 100"));
}

TEST(Scan, HeaderLimitDoesNotCountPayloads) {
  Limits limits;
  limits.max_header_bytes = 20;
  const std::string payloads = BytesField(2, std::string(1000, 'q'));
  const auto header = [](size_t id_bytes) {
    return BytesField(1, BytesField(15, std::string(id_bytes, 'i')));
  };
  EXPECT_TRUE(Scan(payloads + header(16), limits).ok());
  const auto status = Scan(payloads + header(17), limits).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("21 bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("is 20"));
}

// A message past 2 GiB, without the memory: one span stands in for every part of a payload.
TEST(Scan, K34OffsetsPassTwoGibibytes) {
  const std::vector<unsigned char> mebibyte(size_t{1} << 20);
  const int64_t payload_bytes = int64_t{1} << 30;
  std::vector<std::string> prefixes;
  for (uint32_t number : {2u, 3u, 4u}) {
    prefixes.push_back(Tag(number, 2) + Varint(static_cast<uint64_t>(payload_bytes)));
  }
  prefixes.push_back(Header(7));
  std::vector<server::wire::ByteSpan> spans;
  for (const std::string& prefix : prefixes) {
    spans.emplace_back(reinterpret_cast<const unsigned char*>(prefix.data()), prefix.size());
    if (&prefix == &prefixes.back()) break;
    for (int i = 0; i < 1024; ++i) spans.emplace_back(mebibyte.data(), mebibyte.size());
  }
  Limits limits;
  limits.max_message_bytes = int64_t{1} << 40;
  const auto scanned = server::wire::Scan(spans, limits);
  ASSERT_TRUE(scanned.ok()) << scanned.status();
  EXPECT_EQ(scanned->v.offset_bytes, 2 * payload_bytes + 18);
  EXPECT_EQ(scanned->v.size_bytes, payload_bytes);
  EXPECT_EQ(scanned->header->timeout_us(), 7);
}

TEST(Scan, EmptySpansBetween) {
  const std::string bytes = Header(7) + BytesField(2, "q");
  const Split split(bytes, {0, 0, 1, 1, 1, 5, 5, bytes.size(), bytes.size()});
  EXPECT_TRUE(server::wire::Scan(split.spans(), {}).ok());
}

}  // namespace
}  // namespace attnd::testing
