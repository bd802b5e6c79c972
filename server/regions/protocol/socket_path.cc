#include "server/regions/protocol/socket_path.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/regions/protocol/packet.h"

namespace attnd::regions {

std::string RuntimeFolder(const std::string& xdg_runtime_dir, const std::string& run_user,
                          uid_t uid) {
  if (!xdg_runtime_dir.empty() && xdg_runtime_dir.front() == '/') return xdg_runtime_dir;
  std::string of_user = absl::StrCat(run_user, "/", uid);
  struct stat info;
  if (lstat(of_user.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return of_user;
  return absl::StrCat("/tmp/attnd-", uid);
}

std::string DefaultSocketPath() {
  const char* const xdg = std::getenv("XDG_RUNTIME_DIR");  // NOLINT(concurrency-mt-unsafe)
  return absl::StrCat(RuntimeFolder(xdg == nullptr ? "" : xdg, "/run/user", geteuid()),
                      "/attnd.sock");
}

absl::Status PreparePrivateFolder(const std::string& folder, uid_t uid) {
  // The umask can only take permissions away.
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(absl::StrCat("mkdir ", folder), errno);
  }
  struct stat info;
  if (lstat(folder.c_str(), &info) != 0) return ErrnoStatus(folder, errno);
  if (!S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(folder, " is there and is no folder"));
  }
  if (info.st_uid != uid) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " belongs to user ", info.st_uid, ", must be user ", uid, "'s"));
  }
  if ((info.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s has mode %04o, must be closed to others (0700)", folder, info.st_mode & 07777));
  }
  return absl::OkStatus();
}

}  // namespace attnd::regions
