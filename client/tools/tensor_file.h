// Tensors in files: .npy, and .safetensors as "file.safetensors:name".
//
// .npy: versions 1 and 2, C order, little-endian f4 and f2 (and i4, i8 for ReadIntegers).
// .safetensors: F32, F16, BF16 (and I32, I64). Files are taken for hostile: nothing is allocated
// beyond what the file really holds, every offset is checked, and tensors must lie one after
// another, as the format has it.
#ifndef ATTND_CLIENT_TOOLS_TENSOR_FILE_H_
#define ATTND_CLIENT_TOOLS_TENSOR_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"

namespace attnd::tools {

enum class ElementType { kFloat32, kFloat16, kBFloat16, kInt32, kInt64 };

const char* ElementTypeName(ElementType type);
int64_t SizeBytes(ElementType type);

// What a file holds, as it holds it.
struct FileTensor {
  ElementType type = ElementType::kFloat32;
  std::vector<int64_t> shape;
  std::vector<unsigned char> bytes;
};

// Errors name the file: NOT_FOUND for one that is not there (or a tensor that is not in it, with
// those that are), INVALID_ARGUMENT for what cannot be read.
absl::StatusOr<FileTensor> ReadFileTensor(const std::string& spec);

// A tensor of floating-point numbers.
absl::StatusOr<Tensor> ReadTensor(const std::string& spec);
// One axis of whole numbers, or of floating-point numbers of any type.
absl::StatusOr<std::vector<int64_t>> ReadIntegers(const std::string& spec);
absl::StatusOr<std::vector<float>> ReadFloats(const std::string& spec);

// Writes a version 1 .npy. bfloat16, which .npy does not know, becomes float32, exactly.
absl::Status WriteNpy(const std::string& path, const Tensor& tensor);

// Product of extents times element size. INVALID_ARGUMENT if an extent is negative, there are more
// than 8, or the product passes int64.
absl::StatusOr<int64_t> ShapeBytes(const std::vector<int64_t>& shape, ElementType type);

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_TENSOR_FILE_H_
