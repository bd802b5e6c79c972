// Decode equals ParseFromString and the checks (S56), on random valid requests and on what random
// damage leaves of them. Seeds are fixed: a failure repeats.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/wire/malformed_cases.h"
#include "tests/wire/messages.h"
#include "tests/wire/reference_decode.h"

namespace attnd::testing {
namespace {

using ::testing::IsEmpty;

constexpr int kValidRounds = 2000;
constexpr int kDamagedRounds = 20000;

// The fields of the message, as they stand one after the other; a valid message.
std::vector<std::string> FieldsOf(const v1::ComputeRequest& request) {
  std::vector<std::string> fields;
  v1::ComputeRequest one;
  *one.mutable_header() = request.header();
  fields.push_back(one.SerializeAsString());
  fields.push_back(BytesField(2, request.q()));
  fields.push_back(BytesField(3, request.k()));
  fields.push_back(BytesField(4, request.v()));
  return fields;
}

void Damage(std::string& bytes, std::mt19937& random) {
  if (bytes.empty()) return;
  const size_t at = random() % std::min<size_t>(bytes.size(), random() % 2 ? 80 : bytes.size());
  switch (random() % 6) {
    case 0:
      bytes[at] = static_cast<char>(random());
      return;
    case 1:
      bytes[at] ^= static_cast<char>(1 << (random() % 8));
      return;
    case 2:
      bytes.erase(at, 1 + random() % 4);
      return;
    case 3:
      bytes.insert(at, 1 + random() % 4, static_cast<char>(random()));
      return;
    case 4:
      bytes.resize(at);
      return;
    default:
      bytes += bytes.substr(at, random() % 64);
  }
}

TEST(Differential, ValidRequestsAreAcceptedHoweverTheyAreCut) {
  std::mt19937 random(20);
  for (int round = 0; round < kValidRounds; ++round) {
    const v1::ComputeRequest request = RandomRequest(random);
    const std::string bytes = request.SerializeAsString();
    const Split split = Split::Random(bytes, random);
    const Comparison comparison = CompareWithProtobuf(bytes, split.spans());
    ASSERT_TRUE(comparison.status.ok()) << comparison.status << request.header().DebugString();
    ASSERT_THAT(comparison.difference, IsEmpty()) << request.header().DebugString();
  }
}

TEST(Differential, OneByteSpans) {
  std::mt19937 random(21);
  for (int round = 0; round < 50; ++round) {
    const std::string bytes = RandomRequest(random).SerializeAsString();
    const Split split = Split::EveryByte(bytes);
    const Comparison comparison = CompareWithProtobuf(bytes, split.spans());
    ASSERT_TRUE(comparison.status.ok()) << comparison.status;
    ASSERT_THAT(comparison.difference, IsEmpty());
  }
}

TEST(Differential, FieldsInAnyOrderAndTwice) {
  std::mt19937 random(22);
  for (int round = 0; round < kValidRounds; ++round) {
    std::vector<std::string> fields = FieldsOf(RandomRequest(random));
    for (int extra = 0; extra < 2; ++extra) fields.push_back(fields[random() % fields.size()]);
    fields.push_back(BytesField(2000 + random() % 1000, "hint"));
    std::shuffle(fields.begin(), fields.end(), random);
    std::string bytes;
    for (const std::string& field : fields) bytes += field;
    const Split split = Split::Random(bytes, random);
    ASSERT_THAT(CompareWithProtobuf(bytes, split.spans()).difference, IsEmpty()) << round;
  }
}

TEST(Differential, DamagedRequests) {
  std::mt19937 random(23);
  int accepted = 0;
  for (int round = 0; round < kDamagedRounds; ++round) {
    std::string bytes = RandomRequest(random).SerializeAsString();
    for (unsigned i = 0; i <= random() % 3; ++i) Damage(bytes, random);
    const Split split = Split::Random(bytes, random);
    const Comparison comparison = CompareWithProtobuf(bytes, split.spans());
    ASSERT_THAT(comparison.difference, IsEmpty()) << "round " << round;
    accepted += comparison.status.ok() ? 1 : 0;
  }
  // Damage of both kinds was seen: what still is a request, and what is none.
  EXPECT_GT(accepted, kDamagedRounds / 100);
  EXPECT_LT(accepted, kDamagedRounds * 9 / 10);
}

TEST(Differential, DamagedMalformedCases) {
  std::mt19937 random(24);
  for (const MalformedCase& bad : MalformedCases()) {
    if (bad.bytes.size() > 10000) continue;
    for (int round = 0; round < 10; ++round) {
      std::string bytes = bad.bytes;
      Damage(bytes, random);
      const Split split = Split::Random(bytes, random);
      ASSERT_THAT(CompareWithProtobuf(bytes, split.spans()).difference, IsEmpty()) << bad.name;
    }
  }
}

}  // namespace
}  // namespace attnd::testing
