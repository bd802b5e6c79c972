#include "server/regions/shm_names.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd::server {
namespace {

using absl::InvalidArgumentError;
using absl::StrCat;

constexpr size_t kMaxNameBytes = 256;

absl::Status CheckName(const ShmRegion& region) {
  if (region.name.empty() || region.name.size() > kMaxNameBytes) {
    return InvalidArgumentError(StrCat("name ", Quoted(region.name), " has ", region.name.size(),
                                       " bytes; it must have 1 to ", kMaxNameBytes));
  }
  if (region.size_bytes == 0) {
    return InvalidArgumentError(
        StrCat("byte_size of region ", Quoted(region.name), " is 0; it must be at least 1"));
  }
  return absl::OkStatus();
}

}  // namespace

ShmNames::ShmNames(ShmLimits limits, IsConnected is_connected)
    : limits_(std::move(limits)), is_connected_(std::move(is_connected)) {}

absl::Status ShmNames::Register(const ShmRegion& region, const ShmCaller& caller) {
  if (absl::Status status = CheckName(region); !status.ok()) return status;
  absl::StatusOr<std::shared_ptr<const ShmObject>> object =
      OpenShmObject(region, caller.uid, limits_.prefix);
  if (!object.ok()) return object.status();
  DropRemoved();
  const Key key = KeyOf(caller, region.name);
  DropDisconnected([&](const Key& held) { return held == key; });
  Entry entry = {region, caller.connection, *std::move(object)};
  absl::Status status = TryAdd(key, entry);
  if (absl::IsResourceExhausted(status)) {
    DropDisconnected([](const Key&) { return true; });
    status = TryAdd(key, entry);
  }
  return status;
}

absl::Status ShmNames::TryAdd(const Key& key, const Entry& entry) {
  MutexLock lock(mutex_);
  if (entries_.count(key) > 0) {
    return absl::AlreadyExistsError(StrCat("region ", Quoted(entry.region.name),
                                           " is registered already; unregister it first"));
  }
  if (absl::Status status = CheckLimits(key, entry.region); !status.ok()) return status;
  entries_.emplace(key, entry);
  return absl::OkStatus();
}

absl::Status ShmNames::CheckLimits(const Key& key, const ShmRegion& region) const {
  int64_t regions = 0, bytes = 0, own_regions = 0, own_bytes = 0;
  for (const auto& [held, entry] : entries_) {
    const bool is_own = SameOwner(held, key);
    const auto size_bytes = static_cast<int64_t>(entry.region.size_bytes);
    regions += 1;
    bytes += size_bytes;
    own_regions += is_own ? 1 : 0;
    own_bytes += is_own ? size_bytes : 0;
  }
  const auto check = [&](const char* what, int64_t held, int64_t more, int64_t max) {
    if (more <= max - held) return absl::OkStatus();
    return absl::ResourceExhaustedError(StrCat("region ", Quoted(region.name), ": ", held, " ",
                                               what, " are registered, and ", more,
                                               " more would be over this server's ", max));
  };
  const auto more_bytes = static_cast<int64_t>(region.size_bytes);
  absl::Status status = check("regions", regions, 1, limits_.max_regions);
  status.Update(check("bytes of regions", bytes, more_bytes, limits_.max_bytes));
  if (own_regions == 0) return status;
  status.Update(check("regions of this caller's", own_regions, 1, limits_.max_regions / 2));
  status.Update(
      check("bytes of this caller's regions", own_bytes, more_bytes, limits_.max_bytes / 2));
  return status;
}

void ShmNames::Drop(const std::function<bool(const Key&, const Entry&)>& which) {
  // Closed without the lock, for it may be that this frees their memory.
  std::vector<Entry> dropped;
  MutexLock lock(mutex_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (!which(it->first, it->second)) {
      ++it;
      continue;
    }
    dropped.push_back(std::move(it->second));
    it = entries_.erase(it);
  }
}

void ShmNames::DropRemoved() {
  Drop([](const Key&, const Entry& entry) { return entry.object->IsRemoved(); });
}

void ShmNames::DropDisconnected(const std::function<bool(const Key&)>& which) {
  std::set<std::string> connections;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, entry] : entries_) {
      if (which(key)) connections.insert(entry.connection);
    }
  }
  for (auto it = connections.begin(); it != connections.end();) {
    it = is_connected_(*it) ? connections.erase(it) : std::next(it);
  }
  if (connections.empty()) return;
  Drop([&](const Key& key, const Entry& entry) {
    return which(key) && connections.count(entry.connection) > 0;
  });
}

void ShmNames::Unregister(const std::string& name, const ShmCaller& caller) {
  const Key wanted = KeyOf(caller, name);
  Drop([&](const Key& key, const Entry&) { return key == wanted; });
}

void ShmNames::UnregisterAll(const ShmCaller& caller) {
  const Key owner = KeyOf(caller, "");
  DropDisconnected([&](const Key& key) { return SameOwner(key, owner); });
  Drop([&](const Key& key, const Entry& entry) {
    return SameOwner(key, owner) && entry.connection == caller.connection;
  });
}

absl::Status ShmNames::NoSuchRegion(const std::string& name) {
  return absl::NotFoundError(StrCat("this caller has no shared memory region ", Quoted(name)));
}

absl::StatusOr<std::vector<ShmRegion>> ShmNames::Status(const std::string& name,
                                                        const ShmCaller& caller) const {
  std::vector<ShmRegion> regions;
  const Key owner = KeyOf(caller, "");
  MutexLock lock(mutex_);
  for (const auto& [key, entry] : entries_) {
    if (SameOwner(key, owner) && (name.empty() || name == entry.region.name)) {
      regions.push_back(entry.region);
    }
  }
  if (regions.empty() && !name.empty()) return NoSuchRegion(name);
  return regions;
}

absl::StatusOr<ShmRange> ShmNames::Find(const std::string& name, uint64_t offset_bytes,
                                        uint64_t size_bytes, const ShmCaller& caller) const {
  ShmRegion region;
  ShmRange range;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(KeyOf(caller, name));
    if (found == entries_.end()) return NoSuchRegion(name);
    region = found->second.region;
    range.object_ = found->second.object;
  }
  if (!LiesIn(offset_bytes, size_bytes, region.size_bytes)) {
    return InvalidArgumentError(StrCat("offset ", offset_bytes, " and byte_size ", size_bytes,
                                       " do not lie in region ", Quoted(name), " of ",
                                       region.size_bytes, " bytes"));
  }
  range.begin_bytes_ = static_cast<int64_t>(region.offset_bytes + offset_bytes);
  range.size_bytes_ = static_cast<int64_t>(size_bytes);
  if (range.object_->IsRemoved()) {
    return absl::FailedPreconditionError(
        StrCat("the object ", Quoted(region.key), " of region ", Quoted(name),
               " has been removed since it was registered; register it again"));
  }
  if (absl::Status status = range.CheckObject(range.size_bytes_); !status.ok()) return status;
  return range;
}

int64_t ShmNames::regions() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(entries_.size());
}

int64_t ShmNames::bytes() const {
  MutexLock lock(mutex_);
  int64_t bytes = 0;
  for (const auto& [key, entry] : entries_) bytes += static_cast<int64_t>(entry.region.size_bytes);
  return bytes;
}

}  // namespace attnd::server
