// Memory of a caller on this host, mapped once and used in place.
#ifndef ATTND_SERVER_REGIONS_REGION_H_
#define ATTND_SERVER_REGIONS_REGION_H_

#include <cstdint>
#include <list>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/sync.h"
#include "server/regions/gpu_memory.h"
#include "server/regions/region_ledger.h"
#include "server/regions/sigbus_guard.h"

namespace attnd::server {

// What a call does with a range of a region.
enum class Access { kRead, kWrite };

// Makes memory known to a GPU, so that its copies run from and to it by themselves
// (cudaHostRegister). Thread-safe.
class PageLocker {
 public:
  virtual ~PageLocker() = default;
  virtual absl::Status Lock(void* memory, int64_t size_bytes) = 0;
  // What Lock() was given, once, after nothing uses it any more.
  virtual void Unlock(void* memory) = 0;
};

class Region;

// A call's right to a range of a region; given back when destroyed. The range stays mapped until
// then, whatever becomes of the region's connection and of the client. Movable, not copyable.
// Empty ranges are valid.
//
// The client may write into the range at any time: what is read twice may differ, so lengths, and
// whatever else decides where is read, must be copied out before they are checked.
class RegionLease {
 public:
  RegionLease() = default;
  RegionLease(RegionLease&& other) noexcept;
  RegionLease& operator=(RegionLease&& other) noexcept;
  ~RegionLease();

  unsigned char* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  // Null: data() is the host's memory. Otherwise it is a GPU's, and this process may not touch it.
  const GpuMemory* gpu() const;

  // Whether pages of the region were missing. Asked after the last access: if so, what was read is
  // not what the client had, what was written is not there, and the call must fail.
  bool broken() const;
  // OK, or DATA_LOSS if broken.
  absl::Status status() const;

 private:
  friend class Region;
  struct Range {
    int64_t begin_bytes;
    int64_t end_bytes;
    Access access;
  };
  std::shared_ptr<Region> region_;
  std::list<Range>::iterator range_;
  unsigned char* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

// What a client's file must be: shared memory with pages of the usual size (memfd_create without
// MFD_HUGETLB), sealed with F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL and not against writing;
// `size_bytes` long, a multiple of the page size, > 0, all of it with memory behind it (fallocate).
// INVALID_ARGUMENT names what is not so.
absl::StatusOr<FileId> CheckRegionFile(int fd, int64_t size_bytes);

// Invariants.
//  1. Of two ranges in `leases_` that overlap, neither is written.
//  2. Each range in `leases_` belongs to one RegionLease, which holds the region: so the last one
//     gone, and the table's hold too, nothing can reach the mapping, and it is taken down.
// Thread-safe.
class Region : public std::enable_shared_from_this<Region> {
 public:
  // More than the ranges of all calls that a server holds at once; they are searched one by one.
  static constexpr int64_t kMaxLeases = 4096;

  // Maps the file and touches every page. `fd` stays the caller's and may be closed; it has passed
  // CheckRegionFile: that is not looked at again. `locker`: null for none; it must stay.
  // RESOURCE_EXHAUSTED if there is no memory for the pages.
  static absl::StatusOr<std::shared_ptr<Region>> Map(int fd, int64_t size_bytes,
                                                     std::unique_ptr<RegionLedger::Entry> entry,
                                                     std::shared_ptr<PageLocker> locker);
  // Of a GPU's memory, which never breaks.
  static std::shared_ptr<Region> OfGpu(std::unique_ptr<GpuMemory> memory,
                                       std::unique_ptr<RegionLedger::Entry> entry);
  ~Region();

  // INVALID_ARGUMENT, naming the numbers, for a range that is not in the region, or that overlaps
  // one in use where either is written; RESOURCE_EXHAUSTED beyond kMaxLeases; NOT_FOUND once the
  // region is closed; DATA_LOSS if it is broken.
  absl::StatusOr<RegionLease> Pin(int64_t offset_bytes, int64_t size_bytes, Access access)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // No more leases; those that are out stay good.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t size_bytes() const { return size_bytes_; }
  bool broken() const { return guard_ != nullptr && guard_->tripped(); }

 private:
  friend class RegionLease;
  Region(unsigned char* base, int64_t size_bytes, std::unique_ptr<RegionLedger::Entry> entry)
      : base_(base), size_bytes_(size_bytes), entry_(std::move(entry)) {}

  absl::Status CheckOverlap(const RegionLease::Range& range) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unpin(std::list<RegionLease::Range>::iterator range) ABSL_LOCKS_EXCLUDED(mutex_);

  unsigned char* const base_;
  const int64_t size_bytes_;
  const std::unique_ptr<RegionLedger::Entry> entry_;
  // Set by Map or OfGpu alone, before anybody else sees the region.
  std::unique_ptr<SigbusGuard> guard_;
  std::unique_ptr<GpuMemory> gpu_;      // null: the host's memory
  std::shared_ptr<PageLocker> locker_;  // null unless the pages are locked

  Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::list<RegionLease::Range> leases_ ABSL_GUARDED_BY(mutex_);
};

// memcpy of `size_bytes` into or out of the range of `lease`, then its status(): the copy is
// good only if it is OK.
absl::Status GuardedCopy(void* to, const void* from, int64_t size_bytes, const RegionLease& lease);

}  // namespace attnd::server

#endif  // ATTND_SERVER_REGIONS_REGION_H_
