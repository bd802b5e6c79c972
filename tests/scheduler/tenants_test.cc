#include "server/scheduler/tenants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace attnd::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ErrorOf(absl::string_view text) {
  const auto tenants = ParseTenants(text);
  if (tenants.ok()) return "no error";
  EXPECT_EQ(tenants.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(tenants.status().message());
}

TEST(Tenants, AFileIsRead) {
  const std::string path = ::testing::TempDir() + "attnd_tenants_test.txt";
  std::ofstream(path) << "# who\r\n"
                         "team-a\tweight=4  max_queue_requests=100 max_queue_bytes=1073741824\r\n"
                         "\n"
                         "10.0.0.7 # a machine\n"
                         "::1 weight=2";
  const auto tenants = ReadTenants(path);
  ASSERT_TRUE(tenants.ok()) << tenants.status();
  ASSERT_EQ(tenants->size(), 4u);
  EXPECT_EQ((*tenants)[0].name, "team-a");
  EXPECT_EQ((*tenants)[0].weight, 4);
  EXPECT_EQ((*tenants)[0].max_queue_requests, 100);
  EXPECT_EQ((*tenants)[0].max_queue_bytes, 1 << 30);
  EXPECT_EQ((*tenants)[1].name, "10.0.0.7");
  EXPECT_EQ((*tenants)[1].weight, 1);
  EXPECT_EQ((*tenants)[1].max_queue_requests, 0);
  EXPECT_EQ((*tenants)[2].name, "::1");
  EXPECT_EQ((*tenants)[3].name, "default") << "added";
}

TEST(Tenants, NothingIsTheDefaultTenantAlone) {
  ASSERT_EQ(ParseTenants("")->size(), 1u);
  EXPECT_EQ((*ParseTenants("default weight=3"))[0].weight, 3);
  EXPECT_EQ(ParseTenants("default weight=3")->size(), 1u);
}

TEST(Tenants, ErrorsNameTheLineAndTheWord) {
  EXPECT_THAT(ErrorOf("a\nb weight=0"), StartsWith("line 2: \"weight=0\": must be a number"));
  EXPECT_THAT(ErrorOf("a weight=1000001"), HasSubstr("1 to 1000000"));
  EXPECT_THAT(ErrorOf("a weight=much"), HasSubstr("weight=much"));
  EXPECT_THAT(ErrorOf("a weight"), HasSubstr("\"weight\""));
  EXPECT_THAT(ErrorOf("a wait=4"), HasSubstr("\"wait=4\": must be weight=N"));
  EXPECT_THAT(ErrorOf("a max_queue_bytes=-1"), HasSubstr("max_queue_bytes=-1"));
  EXPECT_THAT(ErrorOf("a\n\na"), StartsWith("line 3: \"a\": this tenant is there already"));
  EXPECT_THAT(ErrorOf("a\"b"), HasSubstr("a tenant's name"));
  EXPECT_THAT(ErrorOf(std::string(65, 'a')), HasSubstr("a tenant's name"));
  EXPECT_THAT(ErrorOf(std::string("a\0b", 3)), HasSubstr("\"a\\x00"));
}

TEST(Tenants, AreBounded) {
  std::string text;
  for (size_t i = 1; i < kMaxTenants; ++i) absl::StrAppend(&text, "t", i, "\n");
  EXPECT_TRUE(ParseTenants(text).ok());
  EXPECT_THAT(ErrorOf(absl::StrCat(text, "one-more")), HasSubstr("33 tenants"));
}

TEST(Tenants, AFileThatIsNotThereSaysSo) {
  const absl::Status status = ReadTenants("/no/such/file").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), StartsWith("/no/such/file: "));
}

}  // namespace
}  // namespace attnd::server
