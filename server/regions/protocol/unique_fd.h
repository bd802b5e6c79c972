// A file descriptor with an owner.
#ifndef ATTND_SERVER_REGIONS_PROTOCOL_UNIQUE_FD_H_
#define ATTND_SERVER_REGIONS_PROTOCOL_UNIQUE_FD_H_

#include <unistd.h>

#include <utility>

namespace attnd::regions {

// Closes its descriptor when destroyed; -1 is none. Movable, not copyable.
class UniqueFd {
 public:
  explicit UniqueFd(int fd = -1) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  // The descriptor is the caller's now.
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace attnd::regions

#endif  // ATTND_SERVER_REGIONS_PROTOCOL_UNIQUE_FD_H_
