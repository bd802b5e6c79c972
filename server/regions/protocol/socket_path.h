// Where server and client meet by default.
#ifndef ATTND_SERVER_REGIONS_PROTOCOL_SOCKET_PATH_H_
#define ATTND_SERVER_REGIONS_PROTOCOL_SOCKET_PATH_H_

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"

namespace attnd::regions {

// The user's runtime folder: `xdg_runtime_dir` if it is an absolute path, else `run_user`/<uid> if
// that is a folder, else /tmp/attnd-<uid>.
std::string RuntimeFolder(const std::string& xdg_runtime_dir, const std::string& run_user,
                          uid_t uid);

// attnd.sock in the RuntimeFolder of this process: $XDG_RUNTIME_DIR, /run/user, effective user.
std::string DefaultSocketPath();

// FAILED_PRECONDITION, naming what is and what must be, unless `folder` is a folder (no link to
// one), is owned by `uid`, and nobody else may read, enter or write it. A missing one is made, with
// mode 0700.
absl::Status PreparePrivateFolder(const std::string& folder, uid_t uid);

}  // namespace attnd::regions

#endif  // ATTND_SERVER_REGIONS_PROTOCOL_SOCKET_PATH_H_
