// What a job does with its leases of regions.
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "absl/types/optional.h"
#include "server/job.h"
#include "tests/regions/regions.h"

namespace attnd::server {
namespace {

constexpr int64_t kSize = 4 * kPage;

class RegionJobTest : public ::testing::Test {
 protected:
  // A job that writes the whole region.
  std::shared_ptr<Job> NewJob() {
    auto request = std::make_unique<Request>();
    request->leases = std::make_unique<RegionLeases>();
    auto lease = region_->Pin(0, kSize, Access::kWrite);
    EXPECT_TRUE(lease.ok()) << lease.status();
    request->output.o_place = lease->data();
    request->leases->Add(*std::move(lease));
    return std::make_shared<Job>(std::move(request),
                                 [this](Job&, const absl::StatusOr<Answer>& answer, Stage) {
                                   told_ = answer.status();
                                   free_when_told_ = IsFree();
                                 });
  }
  bool IsFree() const { return region_->Pin(0, 1, Access::kWrite).ok(); }

  // Unsealed, so that it can lose pages.
  const regions::UniqueFd fd_ = NewMemfd(kSize, 0);
  const std::shared_ptr<Region> region_ = MapUnchecked(fd_.get(), kSize);
  absl::optional<absl::Status> told_;
  bool free_when_told_ = false;
};

TEST_F(RegionJobTest, WithAnAnswerTheRangesAreFreeBeforeAnybodyHearsOfIt) {
  const auto job = NewJob();
  EXPECT_FALSE(IsFree());
  job->Finish(Answer(), Stage::kDone);
  EXPECT_TRUE(told_->ok());
  EXPECT_TRUE(free_when_told_);
}

TEST_F(RegionJobTest, AFailedJobKeepsThemUntilItIsDestroyed) {
  auto job = NewJob();
  job->Finish(absl::CancelledError("gone"), Stage::kRun);
  EXPECT_EQ(told_->code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(free_when_told_);
  EXPECT_FALSE(IsFree());
  job.reset();
  EXPECT_TRUE(IsFree());
}

TEST_F(RegionJobTest, S54PagesThatWereMissingTurnTheAnswerIntoDataLoss) {
  const auto job = NewJob();
  ASSERT_EQ(ftruncate(fd_.get(), kPage), 0);
  job->request().output.o_place[kSize - 1] = 1;  // as a kernel would; SIGBUS without the guard
  job->Finish(Answer(), Stage::kDone);
  EXPECT_EQ(told_->code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace attnd::server
