#include "server/regions/mapped_files.h"

#include <sys/sysmacros.h>

#include <fstream>
#include <sstream>
#include <string>

namespace attnd::server {

absl::StatusOr<bool> IsMappedHere(const FileId& file) {
  std::ifstream maps("/proc/self/maps");
  if (!maps) return absl::InternalError("cannot read /proc/self/maps");
  // "7f01-7f02 rw-s 00000000 00:1a 42   /dev/shm/name": range, rights, offset, device, inode.
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string range, rights, offset;
    unsigned device_major = 0, device_minor = 0;
    char colon = 0;
    ino_t inode = 0;
    words >> range >> rights >> offset >> std::hex >> device_major >> colon >> device_minor >>
        std::dec >> inode;
    if (words && FileId{makedev(device_major, device_minor), inode} == file) return true;
  }
  return false;
}

}  // namespace attnd::server
