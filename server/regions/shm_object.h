// One POSIX shared memory object of a caller's.
#ifndef ATTND_SERVER_REGIONS_SHM_OBJECT_H_
#define ATTND_SERVER_REGIONS_SHM_OBJECT_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/regions/protocol/unique_fd.h"

namespace attnd::server {

// What a caller registers: a part of an object.
struct ShmRegion {
  std::string name;  // by which its calls name it; any text of 1 to 256 bytes
  std::string key;   // the object's name, as shm_open takes it; its leading slash may be missing
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;
};

// An object that is open here.
struct ShmObject {
  std::string key;  // with its slash
  regions::UniqueFd fd;

  // Whether no name leads to it any more.
  bool IsRemoved() const;
};

// Opens the object for `user`, whose it must be. INVALID_ARGUMENT: the key is none or not under
// `prefix`, the part is not in the object, it is a link, no regular file, or mapped by this
// process. NOT_FOUND: there is none. PERMISSION_DENIED: it is another user's, or this process may
// not have it. RESOURCE_EXHAUSTED: no descriptors. Each names what it is about, with both values.
absl::StatusOr<std::shared_ptr<const ShmObject>> OpenShmObject(const ShmRegion& region, uid_t user,
                                                               absl::string_view prefix);

// Whether [offset, offset + size) lies in [0, bound), without a sum that could overflow.
bool LiesIn(uint64_t offset_bytes, uint64_t size_bytes, uint64_t bound_bytes);

// As errors show what a caller has sent.
std::string Quoted(absl::string_view text);

// A call's hold on a part of a region. The object stays open until the last hold is gone, whatever
// becomes of its registration. Copyable; thread-safe.
//
// The client may write to it, shrink it or remove it at any time. So nothing of it is mapped here:
// what is read is copied, once, and a part that is missing is an error, never a SIGBUS.
class ShmRange {
 public:
  ShmRange() = default;

  int64_t size_bytes() const { return size_bytes_; }
  // Copies all of it to `to`. DATA_LOSS, with both sizes, if the object has become too short.
  absl::Status ReadInto(void* to) const;
  // Copies to its beginning; size_bytes <= size_bytes(). DATA_LOSS if the object has become too
  // short, RESOURCE_EXHAUSTED if there is no memory for its pages.
  absl::Status WriteFrom(const void* from, int64_t size_bytes) const;

 private:
  friend class ShmNames;
  // OK if the first `size_bytes` of it are there still.
  absl::Status CheckObject(int64_t size_bytes) const;

  std::shared_ptr<const ShmObject> object_;
  int64_t begin_bytes_ = 0;  // in the object
  int64_t size_bytes_ = 0;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_REGIONS_SHM_OBJECT_H_
