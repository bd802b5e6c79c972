#include "server/regions/region.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; glibc's headers know it since 2.35
#endif

namespace attnd::server {
namespace {

std::string ErrnoText(int error) { return std::generic_category().message(error); }

absl::Status NoMemory(const char* what, int64_t size_bytes, int error) {
  return absl::ResourceExhaustedError(absl::StrCat("no memory for a region of ", size_bytes,
                                                   " bytes: ", what, ": ", ErrnoText(error)));
}

std::string RangeText(int64_t begin_bytes, int64_t end_bytes, Access access) {
  return absl::StrCat("[", begin_bytes, ", ", end_bytes, ") to ",
                      access == Access::kWrite ? "write" : "read");
}

absl::Status CheckSeals(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0) return absl::InvalidArgumentError("the file is no memfd: it knows no seals");
  const struct {
    int seal;
    const char* name;
  } needed[] = {
      {F_SEAL_SHRINK, "F_SEAL_SHRINK"}, {F_SEAL_GROW, "F_SEAL_GROW"}, {F_SEAL_SEAL, "F_SEAL_SEAL"}};
  std::string missing;
  for (const auto& seal : needed) {
    if ((seals & seal.seal) == 0) absl::StrAppend(&missing, " ", seal.name);
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the file's seals lack", missing));
  }
  if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) {
    return absl::InvalidArgumentError(
        "the file is sealed against writing: answers could not be written");
  }
  return absl::OkStatus();
}

// Touches every page, so that no call pays for it, and what cannot be had is told as an error here
// instead of a SIGBUS later.
absl::Status Populate(unsigned char* base, int64_t size_bytes) {
  int rc;
  do {
    rc = madvise(base, static_cast<size_t>(size_bytes), MADV_POPULATE_WRITE);
  } while (rc != 0 && (errno == EINTR || errno == EAGAIN));
  // EINVAL: the kernel is too old for it. The pages are there, and will be mapped as they are used.
  if (rc != 0 && errno != EINVAL) return NoMemory("madvise", size_bytes, errno);
  return absl::OkStatus();
}

}  // namespace

RegionLease::RegionLease(RegionLease&& other) noexcept
    : region_(std::move(other.region_)),
      range_(other.range_),
      data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

RegionLease& RegionLease::operator=(RegionLease&& other) noexcept {
  if (this == &other) return *this;
  const RegionLease gone(std::move(*this));
  region_ = std::move(other.region_);
  range_ = other.range_;
  data_ = std::exchange(other.data_, nullptr);
  size_bytes_ = std::exchange(other.size_bytes_, 0);
  return *this;
}

RegionLease::~RegionLease() {
  if (region_ != nullptr) region_->Unpin(range_);
}

const GpuMemory* RegionLease::gpu() const {
  return region_ == nullptr ? nullptr : region_->gpu_.get();
}

bool RegionLease::broken() const { return region_ != nullptr && region_->broken(); }

absl::Status RegionLease::status() const {
  if (!broken()) return absl::OkStatus();
  return absl::DataLossError("the region is broken: its file lost pages while it was in use");
}

absl::StatusOr<FileId> CheckRegionFile(int fd, int64_t size_bytes) {
  // Seals first: with them, what is seen afterwards cannot change.
  if (absl::Status status = CheckSeals(fd); !status.ok()) return status;
  struct statfs system;
  if (fstatfs(fd, &system) != 0 || system.f_type != TMPFS_MAGIC) {
    return absl::InvalidArgumentError("the file must be a memfd with pages of the usual size");
  }
  struct stat info;
  if (fstat(fd, &info) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("fstat: ", ErrnoText(errno)));
  }
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  if (size_bytes <= 0 || size_bytes % page_bytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("size_bytes must be a multiple of ", page_bytes,
                                                   " and more than 0, got ", size_bytes));
  }
  if (info.st_size != size_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("size_bytes is ", size_bytes, ", the file has ", info.st_size));
  }
  // A file may be long and have no memory: what is missing would be taken here, on the server's
  // account, as far as the machine goes.
  constexpr int64_t kBlockBytes = 512;  // stat's unit
  if (info.st_blocks < size_bytes / kBlockBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the file has memory for ",
                                                   info.st_blocks * kBlockBytes, " of its ",
                                                   size_bytes, " bytes; fallocate the rest first"));
  }
  return FileId{info.st_dev, info.st_ino};
}

absl::StatusOr<std::shared_ptr<Region>> Region::Map(int fd, int64_t size_bytes,
                                                    std::unique_ptr<RegionLedger::Entry> entry,
                                                    std::shared_ptr<PageLocker> locker) {
  void* const base =
      mmap(nullptr, static_cast<size_t>(size_bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return NoMemory("mmap", size_bytes, errno);
  // From here on the region takes the mapping down.
  const std::shared_ptr<Region> region(
      new Region(static_cast<unsigned char*>(base), size_bytes, std::move(entry)));
  // No child that the server may start shall keep the pages.
  madvise(base, static_cast<size_t>(size_bytes), MADV_DONTFORK);
  if (absl::Status status = Populate(region->base_, size_bytes); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<SigbusGuard>> guard = SigbusGuard::New(base, size_bytes);
  if (!guard.ok()) return guard.status();
  region->guard_ = *std::move(guard);
  if (locker != nullptr) {
    if (absl::Status status = locker->Lock(base, size_bytes); !status.ok()) return status;
    region->locker_ = std::move(locker);
  }
  return region;
}

std::shared_ptr<Region> Region::OfGpu(std::unique_ptr<GpuMemory> memory,
                                      std::unique_ptr<RegionLedger::Entry> entry) {
  const std::shared_ptr<Region> region(
      new Region(memory->base(), memory->size_bytes(), std::move(entry)));
  region->gpu_ = std::move(memory);
  return region;
}

// Nobody touches the pages any more. The guard goes before the mapping: its addresses may be
// somebody else's a moment later. The entry goes last, for the memory counts until it is free.
Region::~Region() {
  if (gpu_ != nullptr) {
    gpu_.reset();
    return;
  }
  if (locker_ != nullptr) locker_->Unlock(base_);
  guard_.reset();
  munmap(base_, static_cast<size_t>(size_bytes_));
}

absl::StatusOr<RegionLease> Region::Pin(int64_t offset_bytes, int64_t size_bytes, Access access) {
  if (offset_bytes < 0 || size_bytes < 0 || offset_bytes > size_bytes_ ||
      size_bytes > size_bytes_ - offset_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("offset_bytes ", offset_bytes, " and ",
                                                   size_bytes, " bytes from there do not lie in a ",
                                                   "region of ", size_bytes_, " bytes"));
  }
  RegionLease lease;
  {
    MutexLock lock(mutex_);
    if (closed_) return absl::NotFoundError("the region's connection has ended");
    if (broken()) return absl::DataLossError("the region is broken: its file lost pages");
    if (static_cast<int64_t>(leases_.size()) >= kMaxLeases) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the region has ", kMaxLeases, " ranges in use, as many as may be"));
    }
    const RegionLease::Range range = {offset_bytes, offset_bytes + size_bytes, access};
    if (absl::Status status = CheckOverlap(range); !status.ok()) return status;
    lease.range_ = leases_.insert(leases_.end(), range);
  }
  entry_->CountLease(1);
  lease.region_ = shared_from_this();
  lease.data_ = base_ + offset_bytes;
  lease.size_bytes_ = size_bytes;
  return lease;
}

absl::Status Region::CheckOverlap(const RegionLease::Range& range) const {
  for (const RegionLease::Range& held : leases_) {
    const bool written = range.access == Access::kWrite || held.access == Access::kWrite;
    // An empty range overlaps nothing.
    const bool apart = range.begin_bytes >= held.end_bytes || held.begin_bytes >= range.end_bytes ||
                       range.begin_bytes == range.end_bytes || held.begin_bytes == held.end_bytes;
    if (written && !apart) {
      return absl::InvalidArgumentError(
          absl::StrCat("bytes ", RangeText(range.begin_bytes, range.end_bytes, range.access),
                       " overlap bytes ", RangeText(held.begin_bytes, held.end_bytes, held.access),
                       ", which this call or another one has in use"));
    }
  }
  return absl::OkStatus();
}

void Region::Unpin(std::list<RegionLease::Range>::iterator range) {
  {
    MutexLock lock(mutex_);
    leases_.erase(range);
  }
  entry_->CountLease(-1);
}

void Region::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
}

absl::Status GuardedCopy(void* to, const void* from, int64_t size_bytes, const RegionLease& lease) {
  if (size_bytes > 0) std::memcpy(to, from, static_cast<size_t>(size_bytes));
  return lease.status();
}

}  // namespace attnd::server
