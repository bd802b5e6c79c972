// A folder of a test's own.
#ifndef ATTND_TESTS_FAKES_TEMP_FOLDER_H_
#define ATTND_TESTS_FAKES_TEMP_FOLDER_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

namespace attnd::fakes {

// With mode 0700, removed at the end.
class TempFolder {
 public:
  TempFolder() {
    char name[] = "/tmp/attnd-test-XXXXXX";
    EXPECT_NE(mkdtemp(name), nullptr);
    path_ = name;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace attnd::fakes

#endif  // ATTND_TESTS_FAKES_TEMP_FOLDER_H_
