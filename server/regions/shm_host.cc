#include "server/regions/shm_host.h"

namespace attnd::server {

absl::Status NoShmHere() {
  return absl::UnimplementedError(
      "this server takes no shared memory by name; --allow_shm_names lets it");
}

absl::StatusOr<ShmCaller> ShmOfCall::Caller() {
  if (host_ == nullptr) return NoShmHere();
  if (!caller_) {
    absl::StatusOr<ShmCaller> caller = host_->callers.Of(peer_, tenant_);
    if (!caller.ok()) return caller.status();
    caller_ = *std::move(caller);
  }
  return *caller_;
}

absl::StatusOr<ShmRange> ShmOfCall::Find(const std::string& region, uint64_t offset_bytes,
                                         uint64_t size_bytes) {
  const absl::StatusOr<ShmCaller> caller = Caller();
  if (!caller.ok()) return caller.status();
  return host_->names.Find(region, offset_bytes, size_bytes, *caller);
}

}  // namespace attnd::server
