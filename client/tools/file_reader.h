// A file read piece by piece, every piece checked against its size. For the formats of
// tensor_file.h.
#ifndef ATTND_CLIENT_TOOLS_FILE_READER_H_
#define ATTND_CLIENT_TOOLS_FILE_READER_H_

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/tools/tensor_file.h"

namespace attnd::tools {

class FileReader {
 public:
  // NOT_FOUND if it is not there; INVALID_ARGUMENT if it is not a regular file.
  static absl::StatusOr<FileReader> Open(const std::string& path);

  int64_t size_bytes() const { return size_bytes_; }
  // INVALID_ARGUMENT saying so if the file ends before.
  absl::StatusOr<std::vector<unsigned char>> Read(int64_t offset_bytes, int64_t count_bytes);
  // "path: what".
  absl::Status Error(absl::string_view what) const;

 private:
  std::string path_;
  int64_t size_bytes_ = 0;
  std::ifstream file_;
};

absl::StatusOr<FileTensor> ReadNpy(const std::string& path);
// `name` empty: the file must hold one tensor only.
absl::StatusOr<FileTensor> ReadSafetensors(const std::string& path, const std::string& name);

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_FILE_READER_H_
