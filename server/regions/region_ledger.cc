#include "server/regions/region_ledger.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace attnd::server {

std::shared_ptr<RegionLedger> RegionLedger::New(const RegionLimits& limits) {
  return std::shared_ptr<RegionLedger>(new RegionLedger(limits));
}

absl::StatusOr<std::unique_ptr<RegionLedger::Entry>> RegionLedger::Enter(uid_t owner,
                                                                         int64_t size_bytes,
                                                                         FileId file,
                                                                         RegionKind kind) {
  MutexLock lock(mutex_);
  const auto found = owner_bytes_.find(owner);
  const int64_t owned_bytes = found == owner_bytes_.end() ? 0 : found->second;
  if (counts_.regions >= limits_.max_regions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", counts_.regions, " regions, as many as may be"));
  }
  // Written so that no sum can overflow.
  if (size_bytes > limits_.max_owner_bytes - owned_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a region of ", size_bytes, " bytes does not fit: user ", owner, " holds ",
                     owned_bytes, " of max_region_bytes ", limits_.max_owner_bytes));
  }
  if (size_bytes > limits_.max_total_bytes - counts_.bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a region of ", size_bytes, " bytes does not fit: all users hold ",
                     counts_.bytes, " of ", limits_.max_total_bytes));
  }
  if (!files_.insert(file).second) {
    return absl::AlreadyExistsError("this file is a region already");
  }
  CountRegion(kind, 1, size_bytes);
  owner_bytes_[owner] = owned_bytes + size_bytes;
  return std::unique_ptr<Entry>(new Entry(shared_from_this(), owner, size_bytes, file, kind));
}

void RegionLedger::CountRegion(RegionKind kind, int64_t change, int64_t size_bytes) {
  counts_.regions += change;
  counts_.bytes += change * size_bytes;
  if (kind != RegionKind::kGpu) return;
  counts_.gpu_regions += change;
  counts_.gpu_bytes += change * size_bytes;
}

RegionLedger::Entry::~Entry() {
  MutexLock lock(ledger_->mutex_);
  ledger_->CountRegion(kind_, -1, size_bytes_);
  const auto found = ledger_->owner_bytes_.find(owner_);
  found->second -= size_bytes_;
  if (found->second == 0) ledger_->owner_bytes_.erase(found);
  ledger_->files_.erase(file_);
}

void RegionLedger::Entry::CountLease(int64_t change) const {
  MutexLock lock(ledger_->mutex_);
  ledger_->counts_.leases += change;
}

RegionCounts RegionLedger::counts() const {
  MutexLock lock(mutex_);
  return counts_;
}

}  // namespace attnd::server
