// Survives pages that are gone. A file's owner can take pages out from under a mapping (a file that
// shrinks, memory that runs out when a punched page comes back); whoever touches one gets SIGBUS.
#ifndef ATTND_SERVER_REGIONS_SIGBUS_GUARD_H_
#define ATTND_SERVER_REGIONS_SIGBUS_GUARD_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace attnd::server {

// While one stands over a mapping, a SIGBUS there puts a page of zeros, private to this process, in
// the missing page's place and trips the guard; the access goes on. The signal's handler is put in
// place with the first guard and stays; a SIGBUS elsewhere goes to the handler that was there
// before, or ends the process as it would have. The handler takes no lock and allocates nothing.
// Only accesses by the processor are seen: a system call given such an address fails with EFAULT,
// and a GPU works on pages that it has pinned.
class SigbusGuard {
 public:
  // More than any table of regions allows.
  static constexpr int kMaxGuards = 4096;

  // `begin` lies on a page's edge. The mapping must outlive the guard, and nobody may touch it once
  // the guard is gone. RESOURCE_EXHAUSTED if there are kMaxGuards.
  static absl::StatusOr<std::unique_ptr<SigbusGuard>> New(void* begin, int64_t size_bytes);
  ~SigbusGuard();
  SigbusGuard(const SigbusGuard&) = delete;
  SigbusGuard& operator=(const SigbusGuard&) = delete;

  // Whether a page was missing. What was read there was 0; what was written is lost to the file.
  bool tripped() const;

 private:
  explicit SigbusGuard(int slot) : slot_(slot) {}
  const int slot_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_REGIONS_SIGBUS_GUARD_H_
