// POSIX shared memory of callers, by the names that they give it: the way of the Open Inference
// Protocol, for clients that know no other.
#ifndef ATTND_SERVER_REGIONS_SHM_NAMES_H_
#define ATTND_SERVER_REGIONS_SHM_NAMES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/sync.h"
#include "server/regions/shm_caller.h"
#include "server/regions/shm_object.h"

namespace attnd::server {

struct ShmLimits {
  // Objects whose name begins otherwise are refused; without the leading slash. Empty: none are.
  std::string prefix;
  // Of all callers together; one owner has half of either at most, but may have one in any case.
  int64_t max_regions = 256;
  int64_t max_bytes = int64_t{8} << 30;
};

// Invariants.
//  1. An object is opened once, when it is registered, and what was opened is what is used: another
//     one under its name is not seen, and where the first has been removed, no call gets it.
//  2. It belongs to the user who registered it, and is no file that this process has mapped.
// Thread-safe. The lock is held for no system call but fstat.
class ShmNames {
 public:
  // `is_connected`: whether a registration's ShmCaller::connection is there still.
  using IsConnected = std::function<bool(const std::string& connection)>;
  explicit ShmNames(
      ShmLimits limits, IsConnected is_connected = [](const std::string&) { return true; });

  // Opens the object. INVALID_ARGUMENT: a name or key that cannot be one or is not under the
  // prefix, no bytes, a part that is not in the object, no regular file, a link, or memory of the
  // server's own; each names what it is about, with both values. NOT_FOUND: no such object.
  // PERMISSION_DENIED: it is another user's. ALREADY_EXISTS: the name is taken, by a connection
  // that is there still; otherwise it takes its place. RESOURCE_EXHAUSTED: beyond the limits.
  absl::Status Register(const ShmRegion& region, const ShmCaller& caller)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // The owner's, from any connection. Calls that use it go on. Unknown names, and other owners',
  // are no error.
  void Unregister(const std::string& name, const ShmCaller& caller) ABSL_LOCKS_EXCLUDED(mutex_);
  // The owner's that came over this connection, or over one that is no more.
  void UnregisterAll(const ShmCaller& caller) ABSL_LOCKS_EXCLUDED(mutex_);

  // The owner's, by name; of an empty name, all of them. NOT_FOUND for one that is not there.
  absl::StatusOr<std::vector<ShmRegion>> Status(const std::string& name,
                                                const ShmCaller& caller) const
      ABSL_LOCKS_EXCLUDED(mutex_);

  // NOT_FOUND: the owner has none of that name. INVALID_ARGUMENT: the part is not in the region.
  // FAILED_PRECONDITION: the object has been removed. DATA_LOSS: it has become too short.
  absl::StatusOr<ShmRange> Find(const std::string& name, uint64_t offset_bytes, uint64_t size_bytes,
                                const ShmCaller& caller) const ABSL_LOCKS_EXCLUDED(mutex_);

  int64_t regions() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Sorted by owner, so that an owner's lie together.
  using Key = std::tuple<uid_t, std::string, std::string>;  // uid, tenant, name
  struct Entry {
    ShmRegion region;
    std::string connection;
    std::shared_ptr<const ShmObject> object;
  };
  using Entries = std::map<Key, Entry>;

  static Key KeyOf(const ShmCaller& caller, const std::string& name) {
    return {caller.uid, caller.tenant, name};
  }
  static bool SameOwner(const Key& one, const Key& other) {
    return std::get<0>(one) == std::get<0>(other) && std::get<1>(one) == std::get<1>(other);
  }
  static absl::Status NoSuchRegion(const std::string& name);
  absl::Status TryAdd(const Key& key, const Entry& entry) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckLimits(const Key& key, const ShmRegion& region) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(const std::function<bool(const Key&, const Entry&)>& which) ABSL_LOCKS_EXCLUDED(mutex_);
  // Those whose object nobody else can reach any more: only this server keeps its memory.
  void DropRemoved() ABSL_LOCKS_EXCLUDED(mutex_);
  // Of these, those whose connection is no more.
  void DropDisconnected(const std::function<bool(const Key&)>& which) ABSL_LOCKS_EXCLUDED(mutex_);

  const ShmLimits limits_;
  const IsConnected is_connected_;
  mutable Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_REGIONS_SHM_NAMES_H_
