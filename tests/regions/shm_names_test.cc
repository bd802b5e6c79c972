#include "server/regions/shm_names.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/regions/regions.h"
#include "tests/regions/test_object.h"

namespace attnd::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

const ShmCaller kCaller = {getuid(), "default", "ipv4:127.0.0.1:1"};

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& text) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

std::set<std::string> Names(const ShmNames& names, const ShmCaller& caller) {
  std::set<std::string> found;
  const auto regions = names.Status("", caller);
  EXPECT_TRUE(regions.ok()) << regions.status();
  for (const ShmRegion& region : *regions) found.insert(region.name);
  return found;
}

TEST(ShmNames, ReadsAndWritesWhatWasRegistered) {
  const TestObject object("io", 3 * kPage);
  object.Fill('a', 0, 3 * kPage);
  object.Fill('b', kPage + 10, 20);
  ShmNames names({.prefix = "attnd-test-"});
  ASSERT_TRUE(names.Register({"x", object.key(), kPage, kPage}, kCaller).ok());
  const auto range = names.Find("x", 10, 20, kCaller);
  ASSERT_TRUE(range.ok()) << range.status();
  std::string read(20, '?');
  ASSERT_TRUE(range->ReadInto(read.data()).ok());
  EXPECT_EQ(read, std::string(20, 'b'));
  ASSERT_TRUE(range->WriteFrom("0123456789", 10).ok());
  EXPECT_EQ(object.Read(kPage + 9, 12), "a0123456789b");
  EXPECT_EQ(object.Read(0, kPage), std::string(kPage, 'a'));
}

TEST(ShmNames, StatusSaysWhatWasRegistered) {
  const TestObject object("status");
  ShmNames names({});
  EXPECT_TRUE(names.Status("", kCaller)->empty());
  ASSERT_TRUE(names.Register({"b", object.key(), 8, 16}, kCaller).ok());
  // Without its slash, and a part that overlaps another's.
  ASSERT_TRUE(names.Register({"a", object.key().substr(1), 0, kPage}, kCaller).ok());
  EXPECT_EQ(Names(names, kCaller), (std::set<std::string>{"a", "b"}));
  EXPECT_EQ(names.regions(), 2);
  EXPECT_EQ(names.bytes(), kPage + 16);
  const auto one = names.Status("b", kCaller);
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ(one->at(0).key, object.key());
  EXPECT_EQ(one->at(0).offset_bytes, 8u);
  EXPECT_EQ(one->at(0).size_bytes, 16u);
  ExpectError(names.Status("c", kCaller).status(), absl::StatusCode::kNotFound, "\"c\"");
  ExpectError(names.Register({"a", object.key(), 0, 1}, kCaller), absl::StatusCode::kAlreadyExists,
              "\"a\"");
  names.Unregister("a", kCaller);
  names.Unregister("never", kCaller);
  EXPECT_EQ(Names(names, kCaller), std::set<std::string>{"b"});
}

// Triton PR#8170, PR#6914 (S16).
TEST(ShmNames, PartsOutsideTheObjectAreRefused) {
  const TestObject object("outside");
  ShmNames names({});
  const std::pair<uint64_t, uint64_t> outside[] = {{0, kPage + 1},
                                                   {1, kPage},
                                                   {kPage, 1},
                                                   {kPage + 1, 1},
                                                   {kMax, 1},
                                                   {1, kMax},
                                                   {0, kMax},
                                                   {kMax, kMax},
                                                   {kMax - kPage, kPage + 2},
                                                   {kMax / 2 + 1, 1},
                                                   {kPage, kMax - kPage + 1}};
  for (const auto& [offset, size] : outside) {
    const absl::Status status = names.Register({"x", object.key(), offset, size}, kCaller);
    ExpectError(status, absl::StatusCode::kInvalidArgument, std::to_string(offset));
    EXPECT_THAT(std::string(status.message()), HasSubstr("4096"));
  }
  ExpectError(names.Register({"x", object.key(), 0, 0}, kCaller),
              absl::StatusCode::kInvalidArgument, "byte_size");
  EXPECT_EQ(names.regions(), 0);
}

TEST(ShmNames, PartsOutsideTheRegionAreRefused) {
  const TestObject object("region", 4 * kPage);
  ShmNames names({});
  ASSERT_TRUE(names.Register({"x", object.key(), kPage, kPage}, kCaller).ok());
  const std::pair<uint64_t, uint64_t> outside[] = {
      {0, kPage + 1}, {1, kPage}, {kPage, 1}, {kPage + 1, 0}, {kMax, 1}, {1, kMax}, {kMax, kMax}};
  for (const auto& [offset, size] : outside) {
    ExpectError(names.Find("x", offset, size, kCaller).status(), absl::StatusCode::kInvalidArgument,
                std::to_string(size));
  }
  EXPECT_TRUE(names.Find("x", kPage, 0, kCaller).ok());
  EXPECT_TRUE(names.Find("x", 0, kPage, kCaller).ok());
}

// Triton CVE-2025-23319, 23320, 23334 (S54): names of what is not the caller's to name.
TEST(ShmNames, NamesThatAreNoneAreRefused) {
  ShmNames names({.prefix = "attnd-test-"});
  const std::string none[] = {"",
                              "/",
                              "//attnd-test-x",
                              "/attnd-test-/../x",
                              "/attnd-test-x/y",
                              "attnd-test-x/",
                              "../attnd-test-x",
                              "/.",
                              "..",
                              std::string("/attnd-test-x\0y", 15),
                              "/attnd-test-" + std::string(300, 'x')};
  for (const std::string& key : none) {
    ExpectError(names.Register({"x", key, 0, 1}, kCaller), absl::StatusCode::kInvalidArgument,
                "key");
  }
  for (const char* key : {"/attnd-tes", "/x", "/Attnd-test-x", "sem.x", "/psm_1234"}) {
    ExpectError(names.Register({"x", key, 0, 1}, kCaller), absl::StatusCode::kInvalidArgument,
                "does not begin with \"attnd-test-\"");
  }
  ExpectError(names.Register({"x", "/attnd-test-none", 0, 1}, kCaller), absl::StatusCode::kNotFound,
              "/attnd-test-none");
  const TestObject object("named");
  for (const std::string& name : {std::string(), std::string(257, 'n')}) {
    ExpectError(names.Register({name, object.key(), 0, 1}, kCaller),
                absl::StatusCode::kInvalidArgument, "1 to 256");
  }
  EXPECT_EQ(names.regions(), 0);
}

TEST(ShmNames, LinksFoldersAndPipesAreRefused) {
  const TestObject object("kinds");
  ShmNames names({});
  const std::string link = object.key() + "-link", folder = object.key() + "-folder",
                    pipe = object.key() + "-pipe";
  ASSERT_EQ(symlink(object.path().c_str(), ("/dev/shm" + link).c_str()), 0);
  ASSERT_EQ(mkdir(("/dev/shm" + folder).c_str(), 0700), 0);
  ASSERT_EQ(mkfifo(("/dev/shm" + pipe).c_str(), 0600), 0);
  const int64_t fds = OpenFds();
  ExpectError(names.Register({"x", link, 0, 1}, kCaller), absl::StatusCode::kInvalidArgument,
              "is a link");
  EXPECT_EQ(names.Register({"x", folder, 0, 1}, kCaller).code(),
            absl::StatusCode::kInvalidArgument);
  ExpectError(names.Register({"x", pipe, 0, 1}, kCaller), absl::StatusCode::kInvalidArgument,
              "no regular file");
  EXPECT_EQ(OpenFds(), fds);
  unlink(("/dev/shm" + link).c_str());
  rmdir(("/dev/shm" + folder).c_str());
  unlink(("/dev/shm" + pipe).c_str());
}

TEST(ShmNames, MemoryOfTheServersOwnIsRefused) {
  const TestObject object("own");
  ShmNames names({});
  void* const mapped = mmap(nullptr, kPage, PROT_READ, MAP_SHARED, object.fd(), 0);
  ASSERT_NE(mapped, MAP_FAILED);
  ExpectError(names.Register({"x", object.key(), 0, kPage}, kCaller),
              absl::StatusCode::kInvalidArgument, "the server's own");
  munmap(mapped, kPage);
  EXPECT_TRUE(names.Register({"x", object.key(), 0, kPage}, kCaller).ok());
}

TEST(ShmNames, AnotherUsersObjectIsRefused) {
  const TestObject object("theirs");
  ShmNames names({});
  const ShmCaller other = {getuid() + 1, kCaller.tenant, kCaller.connection};
  const absl::Status status = names.Register({"x", object.key(), 0, kPage}, other);
  ExpectError(status, absl::StatusCode::kPermissionDenied, "user " + std::to_string(getuid()));
  EXPECT_THAT(std::string(status.message()), HasSubstr("user " + std::to_string(other.uid)));
}

// Triton#3428 (S18).
TEST(ShmNames, OneCallerCannotReachAnothers) {
  const TestObject object("mine");
  ShmNames names({});
  ASSERT_TRUE(names.Register({"x", object.key(), 0, kPage}, kCaller).ok());
  ShmCaller other_user = kCaller;
  other_user.uid += 1;
  ShmCaller other_tenant = kCaller;
  other_tenant.tenant = "team-b";
  for (const ShmCaller& other : {other_user, other_tenant}) {
    EXPECT_TRUE(Names(names, other).empty());
    EXPECT_EQ(names.Status("x", other).status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(names.Find("x", 0, 1, other).status().code(), absl::StatusCode::kNotFound);
    names.Unregister("x", other);
    names.UnregisterAll(other);
    EXPECT_EQ(Names(names, kCaller), std::set<std::string>{"x"});
  }
  // The same name is free for another.
  EXPECT_TRUE(names.Register({"x", object.key(), 0, 1}, other_tenant).ok());
  EXPECT_EQ(names.Find("x", 0, 2, other_tenant).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(names.Find("x", 0, 2, kCaller).ok());
}

TEST(ShmNames, AllOfACallersAreThoseOfItsConnection) {
  const TestObject object("all");
  std::set<std::string> gone;
  ShmNames names({}, [&](const std::string& connection) { return gone.count(connection) == 0; });
  const ShmCaller second = {kCaller.uid, kCaller.tenant, "ipv4:127.0.0.1:2"};
  ASSERT_TRUE(names.Register({"first", object.key(), 0, 1}, kCaller).ok());
  ASSERT_TRUE(names.Register({"second", object.key(), 0, 1}, second).ok());
  names.UnregisterAll(second);
  EXPECT_EQ(Names(names, kCaller), std::set<std::string>{"first"});
  // By name one user's processes share what they have.
  EXPECT_TRUE(names.Find("first", 0, 1, second).ok());
  EXPECT_EQ(names.Register({"first", object.key(), 0, 2}, second).code(),
            absl::StatusCode::kAlreadyExists);
  // What a process that has ended left behind is in nobody's way.
  gone.insert(kCaller.connection);
  EXPECT_TRUE(names.Register({"first", object.key(), 0, 2}, second).ok());
  ASSERT_TRUE(names.Register({"left", object.key(), 0, 1}, kCaller).ok());
  names.UnregisterAll(second);
  EXPECT_TRUE(Names(names, second).empty());
}

// Triton#3207 (S14).
TEST(ShmNames, WhatIsUnregisteredInACallStaysForTheCall) {
  const TestObject object("inuse");
  object.Fill('q', 0, kPage);
  const int64_t fds = OpenFds();
  ShmNames names({});
  ASSERT_TRUE(names.Register({"x", object.key(), 0, kPage}, kCaller).ok());
  auto range = names.Find("x", 0, kPage, kCaller);
  ASSERT_TRUE(range.ok());
  names.UnregisterAll(kCaller);
  object.Remove();
  EXPECT_EQ(names.Find("x", 0, kPage, kCaller).status().code(), absl::StatusCode::kNotFound);
  std::string read(kPage, '?');
  ASSERT_TRUE(range->ReadInto(read.data()).ok());
  EXPECT_EQ(read, std::string(kPage, 'q'));
  ASSERT_TRUE(range->WriteFrom("o", 1).ok());
  EXPECT_EQ(object.Read(0, 2), "oq");
  *range = ShmRange();
  EXPECT_EQ(OpenFds(), fds);
}

// S54: shrunk between registration and use, and between use and access.
TEST(ShmNames, AnObjectThatShrinksIsAnErrorNotASignal) {
  const TestObject object("shrinks", 2 * kPage);
  ShmNames names({});
  ASSERT_TRUE(names.Register({"x", object.key(), 0, 2 * kPage}, kCaller).ok());
  const auto range = names.Find("x", 0, 2 * kPage, kCaller);
  ASSERT_TRUE(range.ok());
  object.Resize(kPage);
  std::string bytes(2 * kPage, 'o');
  for (const absl::Status& status :
       {names.Find("x", 0, 2 * kPage, kCaller).status(), range->ReadInto(bytes.data()),
        range->WriteFrom(bytes.data(), 2 * kPage)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("4096"), HasSubstr("8192")));
  }
  // What is there still can be used, and a refused write has not made it grow.
  EXPECT_TRUE(names.Find("x", 0, kPage, kCaller).ok());
  EXPECT_TRUE(range->WriteFrom(bytes.data(), kPage).ok());
  struct stat info;
  ASSERT_EQ(fstat(object.fd(), &info), 0);
  EXPECT_EQ(info.st_size, kPage);
}

TEST(ShmNames, AnObjectThatIsReplacedIsNotUsed) {
  const TestObject first("replaced");
  first.Fill('1', 0, kPage);
  ShmNames names({});
  ASSERT_TRUE(names.Register({"x", first.key(), 0, kPage}, kCaller).ok());
  first.Remove();
  const TestObject second("replaced");
  second.Fill('2', 0, kPage);
  ExpectError(names.Find("x", 0, kPage, kCaller).status(), absl::StatusCode::kFailedPrecondition,
              "has been removed");
  // Nobody can use the first any more: its memory goes with the next registration.
  const int64_t fds = OpenFds();
  ASSERT_TRUE(names.Register({"x", second.key(), 0, kPage}, kCaller).ok());
  EXPECT_EQ(OpenFds(), fds);
  std::string read(kPage, '?');
  ASSERT_TRUE(names.Find("x", 0, kPage, kCaller)->ReadInto(read.data()).ok());
  EXPECT_EQ(read, std::string(kPage, '2'));
}

TEST(ShmNames, ShrinkingAllTheWhileHarmsNobody) {
  const TestObject object("race", 64 * kPage);
  ShmNames names({});
  ASSERT_TRUE(names.Register({"x", object.key(), 0, 64 * kPage}, kCaller).ok());
  std::atomic<bool> stop{false};
  std::thread client([&] {
    while (!stop) {
      object.Resize(kPage / 2);
      object.Resize(64 * kPage);
    }
  });
  std::string bytes(64 * kPage, 'x');
  for (int i = 0; i < 500; ++i) {
    const auto range = names.Find("x", 0, 64 * kPage, kCaller);
    if (!range.ok()) {
      EXPECT_EQ(range.status().code(), absl::StatusCode::kDataLoss);
      continue;
    }
    for (const absl::Status& status :
         {range->ReadInto(bytes.data()), range->WriteFrom(bytes.data(), 64 * kPage)}) {
      EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
    }
  }
  stop = true;
  client.join();
}

TEST(ShmNames, TooManyAreRefused) {
  const TestObject object("many", 16 * kPage);
  std::set<std::string> gone;
  ShmNames names({.prefix = "", .max_regions = 4, .max_bytes = 8 * kPage},
                 [&](const std::string& connection) { return gone.count(connection) == 0; });
  const auto caller = [](const char* tenant) { return ShmCaller{getuid(), tenant, tenant}; };
  const auto add = [&](const char* tenant, const char* name, uint64_t size_bytes) {
    return names.Register({name, object.key(), 0, size_bytes}, caller(tenant));
  };
  // One alone may have all of the bytes, but a second one of its own.
  EXPECT_TRUE(add("a", "1", 8 * kPage).ok());
  ExpectError(add("a", "2", 1), absl::StatusCode::kResourceExhausted, "32768");
  names.UnregisterAll(caller("a"));
  ExpectError(add("a", "1", 8 * kPage + 1), absl::StatusCode::kResourceExhausted, "32769");
  EXPECT_TRUE(add("a", "1", 1).ok());
  EXPECT_TRUE(add("a", "2", 1).ok());
  ExpectError(add("a", "3", 1), absl::StatusCode::kResourceExhausted, "this caller's");
  EXPECT_TRUE(add("b", "1", 1).ok());
  EXPECT_TRUE(add("b", "2", 1).ok());
  ExpectError(add("c", "1", 1), absl::StatusCode::kResourceExhausted, "4 regions");
  // Those whose callers have gone make way.
  gone.insert("a");
  EXPECT_TRUE(add("c", "1", 1).ok());
  EXPECT_TRUE(Names(names, caller("a")).empty());
  EXPECT_EQ(Names(names, caller("b")).size(), 2u);
}

TEST(ShmNames, ManyThreadsAtOnce) {
  const TestObject object("threads", kPage);
  ShmNames names({});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const ShmCaller caller = {getuid(), "tenant-" + std::to_string(t % 2), "c"};
      const std::string name = std::to_string(t);
      char byte = 0;
      for (int i = 0; i < 300; ++i) {
        EXPECT_TRUE(names.Register({name, object.key(), 0, 8}, caller).ok());
        const auto range = names.Find(name, 1, 1, caller);
        ASSERT_TRUE(range.ok()) << range.status();
        names.Unregister(name, caller);
        EXPECT_TRUE(range->WriteFrom("x", 1).ok());
        EXPECT_TRUE(range->ReadInto(&byte).ok());
        EXPECT_TRUE(names.Status("", caller).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(names.regions(), 0);
}

}  // namespace
}  // namespace attnd::server
