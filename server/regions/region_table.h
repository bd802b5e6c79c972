// The regions of a server, by handle.
#ifndef ATTND_SERVER_REGIONS_REGION_TABLE_H_
#define ATTND_SERVER_REGIONS_REGION_TABLE_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "kernels/sync.h"
#include "server/regions/gpu_memory.h"
#include "server/regions/protocol/frames.h"
#include "server/regions/region.h"
#include "server/regions/region_ledger.h"

namespace attnd::server {

using regions::RegionHandle;

// How often something was refused since the start, by reason.
struct RegionRefusals {
  int64_t file = 0;    // not what a region's file must be, or a region already
  int64_t cuda = 0;    // not what memory on a GPU must be, or none is taken
  int64_t limit = 0;   // too many regions, too many bytes, no memory
  int64_t handle = 0;  // nobody's
  int64_t range = 0;   // not in the region, or over one that is in use
  int64_t leases = 0;  // as many as may be
  int64_t broken = 0;  // the region lost pages
};

// Leases may outlive the table. Thread-safe.
class RegionTable {
 public:
  // `locker`: null where there is no GPU. `importer`: null where memory on GPUs is not taken.
  explicit RegionTable(const RegionLimits& limits, std::shared_ptr<PageLocker> locker = nullptr,
                       std::shared_ptr<GpuImporter> importer = nullptr)
      : ledger_(RegionLedger::New(limits)),
        locker_(std::move(locker)),
        importer_(std::move(importer)) {}
  ~RegionTable();

  // Checks the file (CheckRegionFile), maps it and gives it a handle that nobody can guess. `fd`
  // stays the caller's. Takes the time that touching every page takes. Errors are those of
  // CheckRegionFile, RegionLedger::Enter and Region::Map.
  absl::StatusOr<RegionHandle> Add(uid_t owner, int fd, int64_t size_bytes)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // The same for memory on a GPU. PERMISSION_DENIED where none is taken; else GpuImporter::Import
  // and RegionLedger::Enter.
  absl::StatusOr<RegionHandle> AddGpu(uid_t owner, const regions::RegisterCudaFrame& offer, int fd)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // The handle is nobody's from here on; the memory goes with the last lease. Unknown handles are
  // no error.
  void Remove(const RegionHandle& handle) ABSL_LOCKS_EXCLUDED(mutex_);

  // NOT_FOUND for a handle that is nobody's; else Region::Pin.
  absl::StatusOr<RegionLease> Pin(const RegionHandle& handle, int64_t offset_bytes,
                                  int64_t size_bytes, Access access) ABSL_LOCKS_EXCLUDED(mutex_);

  // Removed regions count until their last lease is gone.
  RegionCounts counts() const { return ledger_->counts(); }
  RegionRefusals refusals() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::StatusOr<RegionHandle> TryAdd(uid_t owner, int fd, int64_t size_bytes)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<RegionHandle> TryAddGpu(uid_t owner, const regions::RegisterCudaFrame& offer,
                                         int fd) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<RegionHandle> Keep(std::shared_ptr<Region> region) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<RegionLease> TryPin(const RegionHandle& handle, int64_t offset_bytes,
                                     int64_t size_bytes, Access access) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<RegionLedger> ledger_;
  const std::shared_ptr<PageLocker> locker_;
  const std::shared_ptr<GpuImporter> importer_;
  mutable Mutex mutex_;
  RegionRefusals refusals_ ABSL_GUARDED_BY(mutex_);
  // Its hash is salted, so that how long a search takes tells nothing about the handles.
  absl::flat_hash_map<RegionHandle, std::shared_ptr<Region>> regions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_REGIONS_REGION_TABLE_H_
