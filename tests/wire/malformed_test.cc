// Every malformed request gets its code and a message that names what is wrong, however its bytes
// are cut into spans, and the next good request is decoded.
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/wire/malformed_cases.h"
#include "tests/wire/messages.h"
#include "tests/wire/reference_decode.h"

namespace attnd::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<MalformedCase>& Cases() {
  static const auto& cases = *new std::vector<MalformedCase>(MalformedCases());
  return cases;
}

absl::Status DecodeStatus(const Split& split) {
  server::BufferPool pool(int64_t{1} << 30);
  return server::wire::Decode(split.spans(), {}, {}, pool).status();
}

TEST(Malformed, TableHasEveryKindOnce) {
  std::set<std::string> names;
  for (const MalformedCase& bad : Cases()) {
    EXPECT_TRUE(names.insert(bad.name).second) << bad.name << " stands twice";
  }
  EXPECT_GE(names.size(), 200u);
}

TEST(Malformed, S48EachIsRefusedByNameAndTheNextCallWorks) {
  const std::string good = DenseRequest().SerializeAsString();
  for (const MalformedCase& bad : Cases()) {
    const absl::Status status = DecodeStatus(Split(bad.bytes, {}));
    EXPECT_EQ(status.code(), bad.code) << bad.name << ": " << status;
    const std::string message(status.message());
    EXPECT_FALSE(message.empty()) << bad.name;
    for (const std::string& part : bad.substrings)
      EXPECT_THAT(message, HasSubstr(part)) << bad.name;
    EXPECT_TRUE(DecodeStatus(Split(good, {})).ok()) << "after " << bad.name;
  }
}

TEST(Malformed, SameStatusHoweverTheBytesAreCut) {
  std::mt19937 random(1);
  for (const MalformedCase& bad : Cases()) {
    const absl::Status whole = DecodeStatus(Split(bad.bytes, {}));
    EXPECT_EQ(DecodeStatus(Split::Random(bad.bytes, random)), whole) << bad.name;
    if (bad.bytes.size() > 10000) continue;
    EXPECT_EQ(DecodeStatus(Split::EveryByte(bad.bytes)), whole) << bad.name;
  }
}

TEST(Malformed, ProtobufAgrees) {
  for (const MalformedCase& bad : Cases()) {
    // What is above a limit of the wire's own is refused before protobuf sees it.
    if (bad.bytes.size() > (size_t{1} << 20)) continue;
    const Split split(bad.bytes, {});
    EXPECT_THAT(CompareWithProtobuf(bad.bytes, split.spans()).difference, IsEmpty()) << bad.name;
  }
}

}  // namespace
}  // namespace attnd::testing
