// The retry rules of attnd::Client, one by one.
#include "client/retry.h"

#include "gtest/gtest.h"

namespace attnd::client {
namespace {

FailedTry Failed(absl::StatusCode code) {
  FailedTry failed;
  failed.code = code;
  return failed;
}

bool Retries(const FailedTry& failed) { return RetryWait({}, failed, 0.5).has_value(); }

TEST(RetryWait, UnavailableIsRetriedWhoeverSaidIt) {
  FailedTry failed = Failed(absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Retries(failed));
  failed.has_version_trailer = true;
  EXPECT_TRUE(Retries(failed));
}

TEST(RetryWait, ResourceExhaustedNeedsAPushback) {
  FailedTry failed = Failed(absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(Retries(failed));
  failed.pushback_ms = -1;
  EXPECT_FALSE(Retries(failed));
  failed.pushback_ms = 0;
  EXPECT_TRUE(Retries(failed));
}

TEST(RetryWait, UnknownAndInternalOnlyWhenAttndDidNotSpeak) {
  for (absl::StatusCode code : {absl::StatusCode::kUnknown, absl::StatusCode::kInternal}) {
    FailedTry failed = Failed(code);
    EXPECT_TRUE(Retries(failed));
    failed.has_version_trailer = true;
    EXPECT_FALSE(Retries(failed));
  }
}

TEST(RetryWait, NothingElseIsRetried) {
  for (int code = 1; code <= 16; ++code) {
    const auto status = static_cast<absl::StatusCode>(code);
    if (status == absl::StatusCode::kUnavailable || status == absl::StatusCode::kUnknown ||
        status == absl::StatusCode::kInternal || status == absl::StatusCode::kResourceExhausted) {
      continue;
    }
    FailedTry failed = Failed(status);
    EXPECT_FALSE(Retries(failed)) << code;
    failed.pushback_ms = 1;
    EXPECT_FALSE(Retries(failed)) << code;
  }
}

TEST(RetryWait, StopsAtMaxTries) {
  FailedTry failed = Failed(absl::StatusCode::kUnavailable);
  failed.tries = 3;
  EXPECT_TRUE(Retries(failed));
  failed.tries = 4;
  EXPECT_FALSE(Retries(failed));
  ClientOptions once;
  once.max_tries = 1;
  EXPECT_FALSE(RetryWait(once, Failed(absl::StatusCode::kUnavailable), 0.5).has_value());
}

TEST(RetryWait, BackoffDoublesWithJitterUpToItsMaximum) {
  ClientOptions options;
  options.max_tries = 100;
  options.first_backoff = absl::Milliseconds(20);
  options.max_backoff = absl::Milliseconds(100);
  FailedTry failed = Failed(absl::StatusCode::kUnavailable);
  const int64_t want_ms[] = {20, 40, 80, 100, 100};
  for (int tries = 1; tries <= 5; ++tries) {
    failed.tries = tries;
    const absl::Duration middle = absl::Milliseconds(want_ms[tries - 1]);
    EXPECT_NEAR(absl::ToDoubleMilliseconds(*RetryWait(options, failed, 0)),
                absl::ToDoubleMilliseconds(middle * 0.8), 1e-3);
    EXPECT_NEAR(absl::ToDoubleMilliseconds(*RetryWait(options, failed, 0.5)),
                absl::ToDoubleMilliseconds(middle), 1e-3);
    EXPECT_LT(*RetryWait(options, failed, 0.999), middle * 1.2);
  }
  failed.tries = 90;  // no overflow on the way up
  EXPECT_LE(*RetryWait(options, failed, 0.999), options.max_backoff * 1.2);
}

TEST(RetryWait, PushbackReplacesTheBackoffExactly) {
  FailedTry failed = Failed(absl::StatusCode::kUnavailable);
  failed.pushback_ms = 1234;
  EXPECT_EQ(RetryWait({}, failed, 0.99), absl::Milliseconds(1234));
  failed.pushback_ms = absl::ToInt64Milliseconds(kMaxPushback) + 1;
  EXPECT_FALSE(Retries(failed));
}

TEST(RetryWait, StaysWithinTheDeadline) {
  FailedTry failed = Failed(absl::StatusCode::kUnavailable);
  failed.pushback_ms = 100;
  failed.deadline_left = absl::Milliseconds(101);
  EXPECT_TRUE(Retries(failed));
  failed.deadline_left = absl::Milliseconds(100);
  EXPECT_FALSE(Retries(failed));
  failed.pushback_ms.reset();
  failed.deadline_left = -absl::Seconds(1);
  EXPECT_FALSE(Retries(failed));
}

TEST(ParsePushbackMs, WhatIsNoNumberMeansNever) {
  EXPECT_EQ(ParsePushbackMs("0"), 0);
  EXPECT_EQ(ParsePushbackMs("250"), 250);
  EXPECT_EQ(ParsePushbackMs("-1"), -1);
  for (const char* bad : {"", "soon", "1.5", "99999999999999999999"}) {
    EXPECT_LT(ParsePushbackMs(bad), 0) << bad;
  }
}

int RetriesLeft(RetryBudget& budget) {
  int retries = 0;
  while (budget.TakeRetry()) ++retries;
  return retries;
}

TEST(RetryBudget, StartsWithAReserveOfTen) {
  RetryBudget budget(0.1);
  EXPECT_EQ(RetriesLeft(budget), 10);
}

TEST(RetryBudget, TenCallsPayForOneRetry) {
  RetryBudget budget(0.1);
  RetriesLeft(budget);
  for (int i = 0; i < 9; ++i) budget.OnCall();
  EXPECT_FALSE(budget.TakeRetry());
  budget.OnCall();
  EXPECT_TRUE(budget.TakeRetry());
  EXPECT_FALSE(budget.TakeRetry());
}

TEST(RetryBudget, SavesUpToAHundred) {
  RetryBudget budget(0.1);
  for (int i = 0; i < 100000; ++i) budget.OnCall();
  EXPECT_EQ(RetriesLeft(budget), 100);
}

}  // namespace
}  // namespace attnd::client
