#include "server/regions/region_table.h"

#include <sys/random.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace attnd::server {
namespace {

absl::StatusOr<RegionHandle> NewHandle() {
  RegionHandle handle;
  ssize_t got;
  do {
    got = getrandom(handle.data(), handle.size(), 0);
  } while (got < 0 && errno == EINTR);
  // Up to 256 bytes come whole.
  if (got != static_cast<ssize_t>(handle.size())) {
    return absl::InternalError(absl::StrCat("getrandom failed, errno ", errno));
  }
  return handle;
}

// Two mappings of one allocation may have two addresses: this finds what the driver maps once only.
FileId IdOf(const GpuMemory& memory) { return {~dev_t{0}, reinterpret_cast<ino_t>(memory.base())}; }

}  // namespace

RegionTable::~RegionTable() {
  MutexLock lock(mutex_);
  for (const auto& [handle, region] : regions_) region->Close();
}

absl::StatusOr<RegionHandle> RegionTable::Add(uid_t owner, int fd, int64_t size_bytes) {
  absl::StatusOr<RegionHandle> handle = TryAdd(owner, fd, size_bytes);
  if (!handle.ok()) {
    MutexLock lock(mutex_);
    ++(absl::IsResourceExhausted(handle.status()) ? refusals_.limit : refusals_.file);
  }
  return handle;
}

absl::StatusOr<RegionHandle> RegionTable::TryAdd(uid_t owner, int fd, int64_t size_bytes) {
  const absl::StatusOr<FileId> file = CheckRegionFile(fd, size_bytes);
  if (!file.ok()) return file.status();
  absl::StatusOr<std::unique_ptr<RegionLedger::Entry>> entry =
      ledger_->Enter(owner, size_bytes, *file);
  if (!entry.ok()) return entry.status();
  absl::StatusOr<std::shared_ptr<Region>> region =
      Region::Map(fd, size_bytes, *std::move(entry), locker_);
  if (!region.ok()) return region.status();
  return Keep(*std::move(region));
}

absl::StatusOr<RegionHandle> RegionTable::AddGpu(uid_t owner,
                                                 const regions::RegisterCudaFrame& offer, int fd) {
  absl::StatusOr<RegionHandle> handle = TryAddGpu(owner, offer, fd);
  if (!handle.ok()) {
    MutexLock lock(mutex_);
    ++(absl::IsResourceExhausted(handle.status()) ? refusals_.limit : refusals_.cuda);
  }
  return handle;
}

absl::StatusOr<RegionHandle> RegionTable::TryAddGpu(uid_t owner,
                                                    const regions::RegisterCudaFrame& offer,
                                                    int fd) {
  if (importer_ == nullptr) {
    return absl::PermissionDeniedError(
        "this server takes no memory on GPUs; it needs a GPU and --allow_cuda_ipc");
  }
  absl::StatusOr<std::unique_ptr<GpuMemory>> memory = importer_->Import(offer, fd);
  if (!memory.ok()) return memory.status();
  // Only now is its size known. It takes none of this process' memory until then.
  absl::StatusOr<std::unique_ptr<RegionLedger::Entry>> entry =
      ledger_->Enter(owner, (*memory)->size_bytes(), IdOf(**memory), RegionKind::kGpu);
  if (!entry.ok()) return entry.status();
  return Keep(Region::OfGpu(*std::move(memory), *std::move(entry)));
}

absl::StatusOr<RegionHandle> RegionTable::Keep(std::shared_ptr<Region> region) {
  const absl::StatusOr<RegionHandle> handle = NewHandle();
  if (!handle.ok()) return handle.status();
  MutexLock lock(mutex_);
  regions_[*handle] = std::move(region);  // two alike: once in 2^128
  return *handle;
}

void RegionTable::Remove(const RegionHandle& handle) {
  std::shared_ptr<Region> region;  // taken down, if it is the last hold, without the lock
  {
    MutexLock lock(mutex_);
    const auto found = regions_.find(handle);
    if (found == regions_.end()) return;
    region = std::move(found->second);
    regions_.erase(found);
  }
  region->Close();
}

absl::StatusOr<RegionLease> RegionTable::Pin(const RegionHandle& handle, int64_t offset_bytes,
                                             int64_t size_bytes, Access access) {
  absl::StatusOr<RegionLease> lease = TryPin(handle, offset_bytes, size_bytes, access);
  if (lease.ok()) return lease;
  MutexLock lock(mutex_);
  switch (lease.status().code()) {
    case absl::StatusCode::kNotFound:
      ++refusals_.handle;
      break;
    case absl::StatusCode::kResourceExhausted:
      ++refusals_.leases;
      break;
    case absl::StatusCode::kDataLoss:
      ++refusals_.broken;
      break;
    default:
      ++refusals_.range;
  }
  return lease;
}

RegionRefusals RegionTable::refusals() const {
  MutexLock lock(mutex_);
  return refusals_;
}

absl::StatusOr<RegionLease> RegionTable::TryPin(const RegionHandle& handle, int64_t offset_bytes,
                                                int64_t size_bytes, Access access) {
  std::shared_ptr<Region> region;
  {
    MutexLock lock(mutex_);
    const auto found = regions_.find(handle);
    if (found == regions_.end()) {
      return absl::NotFoundError("there is no such region: its connection has ended, or never was");
    }
    region = found->second;
  }
  return region->Pin(offset_bytes, size_bytes, access);
}

}  // namespace attnd::server
