#include "server/regions/shm_object.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/regions/mapped_files.h"

namespace attnd::server {
namespace {

using absl::InvalidArgumentError;
using absl::StrCat;

// Of what a caller has sent, in an error.
constexpr size_t kMaxQuotedBytes = 256;
// A file's name, which an object's is.
constexpr size_t kMaxKeyBytes = 255;

std::string ErrnoText(int error) { return std::generic_category().message(error); }

absl::string_view WithoutSlash(absl::string_view key) {
  return absl::StartsWith(key, "/") ? key.substr(1) : key;
}

absl::Status OpenError(const std::string& key, int error) {
  const std::string what = StrCat("key ", Quoted(key), ": ");
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(StrCat(what, "there is no such shared memory object"));
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(
          StrCat(what, "the server may not read and write this object"));
    case ELOOP:
      return InvalidArgumentError(StrCat(what, "is a link, must be a shared memory object"));
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::ResourceExhaustedError(StrCat(what, ErrnoText(error)));
    default:
      return InvalidArgumentError(StrCat(what, ErrnoText(error)));
  }
}

absl::Status CheckOpened(const ShmRegion& region, uid_t user, int fd) {
  const std::string what = StrCat("key ", Quoted(region.key), ": ");
  struct stat info;
  if (fstat(fd, &info) != 0) return OpenError(region.key, errno);
  if (!S_ISREG(info.st_mode)) {
    return InvalidArgumentError(StrCat(what, "is no regular file, must be a shared memory object"));
  }
  if (info.st_uid != user) {
    return absl::PermissionDeniedError(StrCat(what, "the object belongs to user ", info.st_uid,
                                              ", and the caller is user ", user));
  }
  if (!LiesIn(region.offset_bytes, region.size_bytes, static_cast<uint64_t>(info.st_size))) {
    return InvalidArgumentError(StrCat(what, "offset ", region.offset_bytes, " and byte_size ",
                                       region.size_bytes, " do not lie in the object of ",
                                       info.st_size, " bytes"));
  }
  const absl::StatusOr<bool> is_own = IsMappedHere({info.st_dev, info.st_ino});
  if (!is_own.ok()) return is_own.status();
  if (*is_own) return InvalidArgumentError(StrCat(what, "is memory of the server's own"));
  return absl::OkStatus();
}

absl::Status CheckKey(const std::string& key, absl::string_view prefix) {
  const absl::string_view name = WithoutSlash(key);
  const std::string what = StrCat("key ", Quoted(key), " ");
  if (name.empty() || name.size() > kMaxKeyBytes) {
    return InvalidArgumentError(
        StrCat(what, "names ", name.size(), " bytes; it must be 1 to ", kMaxKeyBytes));
  }
  if (absl::StrContains(name, '/') || absl::StrContains(name, '\0') || name == "." ||
      name == "..") {
    return InvalidArgumentError(StrCat(
        what,
        "is no name of a shared memory object: no slash but a leading one, no NUL, not . or .."));
  }
  if (!absl::StartsWith(name, prefix)) {
    return InvalidArgumentError(StrCat(what, "does not begin with ", Quoted(prefix),
                                       ", as this server's --shm_name_prefix wants it"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Quoted(absl::string_view text) {
  return StrCat("\"", absl::CHexEscape(text.substr(0, kMaxQuotedBytes)), "\"");
}

bool LiesIn(uint64_t offset_bytes, uint64_t size_bytes, uint64_t bound_bytes) {
  return offset_bytes <= bound_bytes && size_bytes <= bound_bytes - offset_bytes;
}

bool ShmObject::IsRemoved() const {
  struct stat info;
  return fstat(fd.get(), &info) != 0 || info.st_nlink == 0;
}

absl::StatusOr<std::shared_ptr<const ShmObject>> OpenShmObject(const ShmRegion& region, uid_t user,
                                                               absl::string_view prefix) {
  if (absl::Status status = CheckKey(region.key, prefix); !status.ok()) return status;
  auto object = std::make_shared<ShmObject>();
  object->key = StrCat("/", WithoutSlash(region.key));
  // Neither follows a link nor waits for a pipe's other end.
  constexpr int kFlags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  object->fd = regions::UniqueFd(shm_open(object->key.c_str(), kFlags, 0));
  if (!object->fd.ok()) return OpenError(region.key, errno);
  if (absl::Status status = CheckOpened(region, user, object->fd.get()); !status.ok()) {
    return status;
  }
  return object;
}

absl::Status ShmRange::CheckObject(int64_t size_bytes) const {
  struct stat info;
  if (fstat(object_->fd.get(), &info) != 0) {
    return absl::InternalError(StrCat("fstat: ", ErrnoText(errno)));
  }
  if (LiesIn(static_cast<uint64_t>(begin_bytes_), static_cast<uint64_t>(size_bytes),
             static_cast<uint64_t>(info.st_size))) {
    return absl::OkStatus();
  }
  return absl::DataLossError(StrCat("shared memory object ", Quoted(object_->key), " has ",
                                    info.st_size, " bytes now, and ", begin_bytes_ + size_bytes,
                                    " are needed"));
}

absl::Status ShmRange::ReadInto(void* to) const {
  for (int64_t done = 0; done < size_bytes_;) {
    const ssize_t some = pread(object_->fd.get(), static_cast<unsigned char*>(to) + done,
                               static_cast<size_t>(size_bytes_ - done), begin_bytes_ + done);
    if (some > 0) {
      done += some;
    } else if (some == 0) {
      const absl::Status status = CheckObject(size_bytes_);
      // It may have grown again meanwhile.
      return status.ok() ? absl::DataLossError("a shared memory object shrank") : status;
    } else if (errno != EINTR) {
      return absl::DataLossError(
          StrCat("shared memory object ", Quoted(object_->key), ": pread: ", ErrnoText(errno)));
    }
  }
  return absl::OkStatus();
}

// An object that shrinks between the check and the write grows again by what is written: it is the
// client's own, and no longer than it was registered.
absl::Status ShmRange::WriteFrom(const void* from, int64_t size_bytes) const {
  if (size_bytes == 0) return absl::OkStatus();
  if (absl::Status status = CheckObject(size_bytes); !status.ok()) return status;
  for (int64_t done = 0; done < size_bytes;) {
    const ssize_t some = pwrite(object_->fd.get(), static_cast<const unsigned char*>(from) + done,
                                static_cast<size_t>(size_bytes - done), begin_bytes_ + done);
    if (some > 0) {
      done += some;
    } else if (some < 0 && errno != EINTR) {
      const bool is_full = errno == ENOSPC || errno == ENOMEM;
      return absl::Status(
          is_full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kDataLoss,
          StrCat("shared memory object ", Quoted(object_->key), ": pwrite: ", ErrnoText(errno)));
    }
  }
  return absl::OkStatus();
}

}  // namespace attnd::server
