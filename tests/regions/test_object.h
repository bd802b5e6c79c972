// POSIX shared memory as a client makes it.
#ifndef ATTND_TESTS_REGIONS_TEST_OBJECT_H_
#define ATTND_TESTS_REGIONS_TEST_OBJECT_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "server/regions/protocol/unique_fd.h"

namespace attnd::server {

// An object of this process' user, removed at the end.
class TestObject {
 public:
  explicit TestObject(const std::string& name, int64_t size_bytes = 4096)
      : key_("/attnd-test-" + std::to_string(getpid()) + "-" + name),
        fd_(shm_open(key_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) {
    EXPECT_TRUE(fd_.ok()) << key_;
    Resize(size_bytes);
  }
  ~TestObject() { Remove(); }

  const std::string& key() const { return key_; }
  std::string path() const { return "/dev/shm" + key_; }
  void Remove() const { shm_unlink(key_.c_str()); }
  void Resize(int64_t size_bytes) const { EXPECT_EQ(ftruncate(fd_.get(), size_bytes), 0); }
  void Fill(char byte, int64_t offset_bytes, int64_t size_bytes) const {
    const std::string bytes(static_cast<size_t>(size_bytes), byte);
    EXPECT_EQ(pwrite(fd_.get(), bytes.data(), bytes.size(), offset_bytes), size_bytes);
  }
  std::string Read(int64_t offset_bytes, int64_t size_bytes) const {
    std::string bytes(static_cast<size_t>(size_bytes), '?');
    EXPECT_EQ(pread(fd_.get(), bytes.data(), bytes.size(), offset_bytes), size_bytes);
    return bytes;
  }
  int fd() const { return fd_.get(); }

 private:
  const std::string key_;
  const regions::UniqueFd fd_;
};

}  // namespace attnd::server

#endif  // ATTND_TESTS_REGIONS_TEST_OBJECT_H_
