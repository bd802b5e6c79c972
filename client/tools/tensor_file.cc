#include "client/tools/tensor_file.h"

#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/tools/file_reader.h"
#include "kernels/dtype.h"

namespace attnd::tools {
namespace {

float ToFloat(const FileTensor& tensor, int64_t index) {
  switch (tensor.type) {
    case ElementType::kFloat16:
      return kernels::LoadElement(tensor.bytes.data(), index, kernels::DType::kF16);
    case ElementType::kBFloat16:
      return kernels::LoadElement(tensor.bytes.data(), index, kernels::DType::kBF16);
    default:
      return kernels::LoadElement(tensor.bytes.data(), index, kernels::DType::kF32);
  }
}

bool IsFloat(ElementType type) {
  return type != ElementType::kInt32 && type != ElementType::kInt64;
}

absl::Status WrongKind(const std::string& spec, const FileTensor& tensor,
                       const std::string& wanted) {
  return absl::InvalidArgumentError(absl::StrCat(spec, ": is ", ElementTypeName(tensor.type), " [",
                                                 absl::StrJoin(tensor.shape, ","), "], must be ",
                                                 wanted));
}

std::string NpyHeader(const Tensor& tensor) {
  std::string shape = absl::StrJoin(tensor.shape, ", ");
  if (tensor.shape.size() == 1) shape += ",";
  std::string dict = absl::StrCat("{'descr': '<", tensor.dtype == DType::kFloat16 ? "f2" : "f4",
                                  "', 'fortran_order': False, 'shape': (", shape, "), }");
  constexpr size_t kPreamble = 10;
  dict.append(63 - (kPreamble + dict.size()) % 64, ' ');  // data aligned to 64 bytes
  dict += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(dict.size() & 0xff);
  header += static_cast<char>(dict.size() >> 8);
  return header + dict;
}

}  // namespace

const char* ElementTypeName(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return "float32";
    case ElementType::kFloat16:
      return "float16";
    case ElementType::kBFloat16:
      return "bfloat16";
    case ElementType::kInt32:
      return "int32";
    case ElementType::kInt64:
      return "int64";
  }
  return "?";
}

int64_t SizeBytes(ElementType type) {
  switch (type) {
    case ElementType::kFloat16:
    case ElementType::kBFloat16:
      return 2;
    case ElementType::kFloat32:
    case ElementType::kInt32:
      return 4;
    case ElementType::kInt64:
      return 8;
  }
  return 0;
}

absl::StatusOr<int64_t> ShapeBytes(const std::vector<int64_t>& shape, ElementType type) {
  if (shape.size() > 8) {
    return absl::InvalidArgumentError(absl::StrCat("has ", shape.size(), " axes, at most 8"));
  }
  int64_t bytes = SizeBytes(type);
  bool overflow = false;
  bool empty = false;
  for (int64_t extent : shape) {
    if (extent < 0) return absl::InvalidArgumentError(absl::StrCat("has an extent of ", extent));
    empty = empty || extent == 0;
    overflow = overflow || __builtin_mul_overflow(bytes, extent, &bytes);
  }
  if (empty) return 0;
  if (overflow) return absl::InvalidArgumentError("has a shape whose size passes 64 bits");
  return bytes;
}

absl::StatusOr<FileReader> FileReader::Open(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  FileReader reader;
  reader.path_ = path;
  if (!std::filesystem::exists(status)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  if (!std::filesystem::is_regular_file(status)) return reader.Error("is not a regular file");
  reader.size_bytes_ = static_cast<int64_t>(std::filesystem::file_size(path, error));
  reader.file_.open(path, std::ios::binary);
  if (error || !reader.file_) return reader.Error("cannot be opened");
  return reader;
}

absl::StatusOr<std::vector<unsigned char>> FileReader::Read(int64_t offset_bytes,
                                                            int64_t count_bytes) {
  if (offset_bytes < 0 || count_bytes < 0 || offset_bytes > size_bytes_ ||
      count_bytes > size_bytes_ - offset_bytes) {
    return Error(absl::StrCat("is cut off: has ", size_bytes_, " bytes, needs ", count_bytes,
                              " at ", offset_bytes));
  }
  std::vector<unsigned char> bytes(static_cast<size_t>(count_bytes));
  file_.seekg(offset_bytes);
  file_.read(reinterpret_cast<char*>(bytes.data()), count_bytes);
  if (!file_) return Error("cannot be read");
  return bytes;
}

absl::Status FileReader::Error(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ": ", what));
}

absl::StatusOr<FileTensor> ReadFileTensor(const std::string& spec) {
  constexpr absl::string_view kSuffix = ".safetensors";
  if (absl::EndsWith(spec, ".npy")) return ReadNpy(spec);
  if (absl::EndsWith(spec, kSuffix)) return ReadSafetensors(spec, "");
  const size_t at = spec.rfind(absl::StrCat(kSuffix, ":"));
  if (at != std::string::npos) {
    const size_t end = at + kSuffix.size();
    return ReadSafetensors(spec.substr(0, end), spec.substr(end + 1));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(spec, ": must be file.npy or file.safetensors:name"));
}

absl::StatusOr<Tensor> ReadTensor(const std::string& spec) {
  absl::StatusOr<FileTensor> read = ReadFileTensor(spec);
  if (!read.ok()) return read.status();
  if (!IsFloat(read->type)) return WrongKind(spec, *read, "float32, float16 or bfloat16");
  const DType dtype = read->type == ElementType::kFloat32   ? DType::kFloat32
                      : read->type == ElementType::kFloat16 ? DType::kFloat16
                                                            : DType::kBFloat16;
  return Tensor{dtype, std::move(read->shape), std::move(read->bytes)};
}

absl::StatusOr<std::vector<int64_t>> ReadIntegers(const std::string& spec) {
  absl::StatusOr<FileTensor> read = ReadFileTensor(spec);
  if (!read.ok()) return read.status();
  if (IsFloat(read->type) || read->shape.size() != 1) {
    return WrongKind(spec, *read, "int32 or int64 with one axis");
  }
  std::vector<int64_t> values(read->shape[0]);
  for (size_t i = 0; i < values.size(); ++i) {
    if (read->type == ElementType::kInt64) {
      std::memcpy(&values[i], read->bytes.data() + 8 * i, 8);
    } else {
      int32_t value;
      std::memcpy(&value, read->bytes.data() + 4 * i, 4);
      values[i] = value;
    }
  }
  return values;
}

absl::StatusOr<std::vector<float>> ReadFloats(const std::string& spec) {
  absl::StatusOr<FileTensor> read = ReadFileTensor(spec);
  if (!read.ok()) return read.status();
  if (!IsFloat(read->type) || read->shape.size() != 1) {
    return WrongKind(spec, *read, "floating-point numbers with one axis");
  }
  std::vector<float> values(read->shape[0]);
  for (size_t i = 0; i < values.size(); ++i) values[i] = ToFloat(*read, i);
  return values;
}

absl::Status WriteNpy(const std::string& path, const Tensor& tensor) {
  std::ofstream file(path, std::ios::binary);
  file << NpyHeader(tensor);
  if (tensor.dtype == DType::kBFloat16) {
    std::vector<float> widened(tensor.bytes.size() / 2);
    for (size_t i = 0; i < widened.size(); ++i) {
      widened[i] = kernels::LoadElement(tensor.bytes.data(), i, kernels::DType::kBF16);
    }
    file.write(reinterpret_cast<const char*>(widened.data()), 4 * widened.size());
  } else {
    file.write(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
  return absl::OkStatus();
}

}  // namespace attnd::tools
