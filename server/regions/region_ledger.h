// Who holds how much shared memory.
#ifndef ATTND_SERVER_REGIONS_REGION_LEDGER_H_
#define ATTND_SERVER_REGIONS_REGION_LEDGER_H_

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "kernels/sync.h"

namespace attnd::server {

struct RegionLimits {
  int64_t max_owner_bytes = int64_t{8} << 30;   // of one user's regions; 0: none at all
  int64_t max_total_bytes = int64_t{16} << 30;  // of all
  int64_t max_regions = 1024;
};

enum class RegionKind { kHost, kGpu };

// Regions that are mapped, bytes that they hold, ranges of them that calls use.
struct RegionCounts {
  int64_t regions = 0;
  int64_t bytes = 0;
  int64_t leases = 0;
  // Of these, on GPUs.
  int64_t gpu_regions = 0;
  int64_t gpu_bytes = 0;
};

// A file's identity: two mappings of one file would overlap unseen. Of a GPU's memory its address.
struct FileId {
  dev_t device = 0;
  ino_t inode = 0;
  auto operator<=>(const FileId&) const = default;  // NOLINT(modernize-use-nullptr)
};

// Thread-safe.
class RegionLedger : public std::enable_shared_from_this<RegionLedger> {
 public:
  // One region's entry; taken out when destroyed. Keeps the ledger.
  class Entry {
   public:
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    // A lease more, or (-1) less.
    void CountLease(int64_t change) const;

   private:
    friend class RegionLedger;
    Entry(std::shared_ptr<RegionLedger> ledger, uid_t owner, int64_t size_bytes, FileId file,
          RegionKind kind)
        : ledger_(std::move(ledger)),
          owner_(owner),
          size_bytes_(size_bytes),
          file_(file),
          kind_(kind) {}
    const std::shared_ptr<RegionLedger> ledger_;
    const uid_t owner_;
    const int64_t size_bytes_;
    const FileId file_;
    const RegionKind kind_;
  };

  static std::shared_ptr<RegionLedger> New(const RegionLimits& limits);

  // RESOURCE_EXHAUSTED, naming what is asked for, held and allowed, where a limit would be passed;
  // ALREADY_EXISTS if the file is a region. size_bytes > 0.
  absl::StatusOr<std::unique_ptr<Entry>> Enter(uid_t owner, int64_t size_bytes, FileId file,
                                               RegionKind kind = RegionKind::kHost);

  RegionCounts counts() const;

 private:
  explicit RegionLedger(const RegionLimits& limits) : limits_(limits) {}

  // Counts a region more, or (-1) less.
  void CountRegion(RegionKind kind, int64_t change, int64_t size_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RegionLimits limits_;
  mutable Mutex mutex_;
  RegionCounts counts_ ABSL_GUARDED_BY(mutex_);
  std::map<uid_t, int64_t> owner_bytes_ ABSL_GUARDED_BY(mutex_);  // no entries of 0
  std::set<FileId> files_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_REGIONS_REGION_LEDGER_H_
