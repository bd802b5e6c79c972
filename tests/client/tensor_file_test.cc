// Files as numpy and safetensors write them, and as an enemy would.
#include "client/tools/tensor_file.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"

namespace attnd::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TensorFileTest : public ::testing::Test {
 protected:
  TensorFileTest()
      : folder_(std::filesystem::temp_directory_path() /
                ("attnd_tensor_file_test." + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~TensorFileTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ / name; }
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }
  absl::Status NpyError(const std::string& bytes) const {
    return ReadFileTensor(Write("bad.npy", bytes)).status();
  }
  absl::Status SafetensorsError(const std::string& json, const std::string& data) const {
    return ReadFileTensor(Write("bad.safetensors", Safetensors(json, data)) + ":t").status();
  }

  static std::string Npy(const std::string& dict, const std::string& data, char version = 1) {
    std::string bytes = std::string("\x93NUMPY") + version + '\0';
    const auto size = static_cast<uint32_t>(dict.size());
    for (int i = 0; i < (version == 1 ? 2 : 4); ++i) {
      bytes += static_cast<char>(size >> (8 * i));
    }
    return bytes + dict + data;
  }
  static std::string Safetensors(const std::string& json, const std::string& data) {
    std::string bytes;
    for (int i = 0; i < 8; ++i) {
      bytes += static_cast<char>(static_cast<uint64_t>(json.size()) >> (8 * i));
    }
    return bytes + json + data;
  }

 private:
  const std::filesystem::path folder_;
};

std::string Dict(const std::string& descr, const std::string& shape,
                 const std::string& order = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

TEST_F(TensorFileTest, NpyOfBothVersions) {
  const std::string data(24, 'x');
  for (char version : {1, 2}) {
    const auto tensor = ReadFileTensor(Write("a.npy", Npy(Dict("<f4", "(2, 3)"), data, version)));
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(tensor->type, ElementType::kFloat32);
    EXPECT_THAT(tensor->shape, ElementsAre(2, 3));
    EXPECT_EQ(std::string(tensor->bytes.begin(), tensor->bytes.end()), data);
  }
}

TEST_F(TensorFileTest, NpyShapesOfEveryKind) {
  EXPECT_THAT(ReadFileTensor(Write("a.npy", Npy(Dict("<f2", "(3,)"), "123456")))->shape,
              ElementsAre(3));
  EXPECT_TRUE(ReadFileTensor(Write("b.npy", Npy(Dict("<f4", "()"), "1234")))->shape.empty());
  EXPECT_THAT(ReadFileTensor(Write("c.npy", Npy(Dict("<f4", "(0, 4)"), "")))->shape,
              ElementsAre(0, 4));
  EXPECT_THAT(ReadFileTensor(Write("d.npy", Npy("{\"shape\":(1,1),\"fortran_order\":False,"
                                                "\"descr\":\"<f4\"}   \n",
                                                "1234")))
                  ->shape,
              ElementsAre(1, 1));
}

TEST_F(TensorFileTest, NpyWrittenIsNpyRead) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16}) {
    Tensor tensor{dtype, {2, 1, 3}, {}};
    for (int64_t i = 0; i < tensor.view().size_bytes(); ++i) tensor.bytes.push_back(i + 1);
    ASSERT_TRUE(WriteNpy(Path("o.npy"), tensor).ok());
    const auto read = ReadTensor(Path("o.npy"));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->dtype, dtype);
    EXPECT_EQ(read->shape, tensor.shape);
    EXPECT_EQ(read->bytes, tensor.bytes);
  }
}

TEST_F(TensorFileTest, BFloat16IsWrittenAsFloat32) {
  Tensor tensor{DType::kBFloat16, {2}, std::vector<unsigned char>(4)};
  kernels::StoreElement(tensor.bytes.data(), 0, kernels::DType::kBF16, 1.5f);
  kernels::StoreElement(tensor.bytes.data(), 1, kernels::DType::kBF16, -3e38f);
  ASSERT_TRUE(WriteNpy(Path("o.npy"), tensor).ok());
  const auto read = ReadFloats(Path("o.npy"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ((*read)[0], 1.5f);
  EXPECT_NEAR((*read)[1], -3e38f, 1e36);
}

TEST_F(TensorFileTest, WritingToNowhereIsAnError) {
  EXPECT_THAT(WriteNpy(Path("no/such/o.npy"), Tensor{}).message(), HasSubstr("cannot be written"));
}

TEST_F(TensorFileTest, NpyThatCannotBeUsed) {
  EXPECT_THAT(NpyError(Npy(Dict("<f4", "(2,)", "True"), "12345678")).message(),
              HasSubstr("Fortran order"));
  EXPECT_THAT(NpyError(Npy(Dict(">f4", "(2,)"), "12345678")).message(), HasSubstr("big-endian"));
  EXPECT_THAT(NpyError(Npy(Dict("<f8", "(1,)"), "12345678")).message(),
              HasSubstr("\"<f8\", must be <f4 or <f2; convert float64"));
  EXPECT_THAT(NpyError(Npy(Dict("|V2", "(1,)"), "12")).message(), HasSubstr("safetensors"));
  EXPECT_THAT(NpyError(Npy(Dict("|O", "(1,)"), "12")).message(), HasSubstr("has dtype \"|O\""));
  EXPECT_THAT(NpyError(Npy(Dict("<f4", "(2,)"), "1234567")).message(),
              HasSubstr("holds 7 bytes of data, its shape means 8"));
  EXPECT_THAT(NpyError(Npy(Dict("<f4", "(2,)"), "123456789")).message(), HasSubstr("holds 9"));
  EXPECT_THAT(NpyError(Npy(Dict("<f4", "(2,)"), "12345678", 3)).message(), HasSubstr("version 3"));
}

TEST_F(TensorFileTest, HostileNpy) {
  const std::string bad[] = {
      "",
      "\x93NUMPY",
      "PK\x03\x04 not an npy at all",
      Npy("", "1234"),
      Npy("{}", "1234"),
      Npy("{", "1234"),
      Npy("{'descr': '<f4'}", "1234"),
      Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "1234"),
      Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1 1)}", "1234"),
      Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (,)}", "1234"),
      Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} extra", "1234"),
      Npy("{'descr': '<f4', 'fortran_order': Maybe, 'shape': (1,)}", "1234"),
      Npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", "1234"),
      Npy("{'descr': '<f4, 'fortran_order': False, 'shape': (1,)}", "1234"),
      Npy(Dict("<f4", "(99999999999999999999,)"), "1234"),
      Npy(Dict("<f4", "(4611686018427387904, 4)"), "1234"),
      Npy(Dict("<f4", "(1,1,1,1,1,1,1,1,1)"), "1234"),
      std::string("\x93NUMPY\x01\x00\xff\xff{}", 12),
      std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff{}", 14),
  };
  for (const std::string& bytes : bad) {
    EXPECT_EQ(NpyError(bytes).code(), absl::StatusCode::kInvalidArgument) << bytes;
  }
  const std::string good = Npy(Dict("<f4", "(1,)"), "1234");
  ASSERT_TRUE(NpyError(good).ok());
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(NpyError(good.substr(0, length)).ok()) << length;
  }
}

TEST_F(TensorFileTest, SafetensorsByName) {
  const std::string path = Write(
      "m.safetensors", Safetensors(R"({"__metadata__":{"layer":"3"},)"
                                   R"("v":{"dtype":"F16","shape":[1,2],"data_offsets":[4,8]},)"
                                   R"("k":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
                                   R"("mask":{"dtype":"BOOL","shape":[3],"data_offsets":[8,11]}})",
                                   "abcdefghijk"));
  const auto k = ReadTensor(path + ":k");
  ASSERT_TRUE(k.ok()) << k.status();
  EXPECT_EQ(k->dtype, DType::kBFloat16);
  EXPECT_EQ(std::string(k->bytes.begin(), k->bytes.end()), "abcd");
  EXPECT_EQ(ReadTensor(path + ":v")->dtype, DType::kFloat16);
  EXPECT_THAT(ReadTensor(path + ":mask").status().message(), HasSubstr("has dtype BOOL"));
  const absl::Status missing = ReadTensor(path + ":q").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("has no tensor \"q\"; it has: k, v, mask"));
  EXPECT_THAT(ReadTensor(path).status().message(), HasSubstr("name a tensor"));
}

TEST_F(TensorFileTest, TheOnlyTensorNeedsNoName) {
  const std::string path =
      Write("one.safetensors",
            Safetensors(R"({"o":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234"));
  EXPECT_TRUE(ReadTensor(path).ok());
}

TEST_F(TensorFileTest, HostileSafetensors) {
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return "{\"t\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
           "}}";
  };
  ASSERT_TRUE(SafetensorsError(entry("\"F32\"", "[2]", "[0,8]"), "12345678").ok());
  const std::string bad[] = {
      "",
      "[]",
      "{",
      "{\"t\":{}}",
      "{\"t\":[1,2]}",
      "\xff\xfe",
      std::string(100000, '['),
      entry("4", "[2]", "[0,8]"),
      entry("\"F32\"", "2", "[0,8]"),
      entry("\"F32\"", "[2.0]", "[0,8]"),
      entry("\"F32\"", "[-2]", "[0,8]"),
      entry("\"F32\"", "[2]", "[0]"),
      entry("\"F32\"", "[2]", "[8,0]"),
      entry("\"F32\"", "[2]", "[0,9]"),
      entry("\"F32\"", "[2]", "[4,8]"),
      entry("\"F32\"", "[1]", "[0,4]"),
      entry("\"F32\"", "[3]", "[0,8]"),
      entry("\"F32\"", "[4611686018427387904,4]", "[0,8]"),
      entry("\"F32\"", "[18446744073709551615]", "[0,8]"),
      entry("\"F32\"", "[2]", "[0,18446744073709551608]"),
      R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("u":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
      R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
      R"("u":{"dtype":"F16","shape":[1],"data_offsets":[6,8]}})",
  };
  for (const std::string& json : bad) {
    EXPECT_EQ(SafetensorsError(json, "12345678").code(), absl::StatusCode::kInvalidArgument)
        << json.substr(0, 200);
  }
  for (const std::string& header :
       {std::string("short"), std::string(8, '\xff'), std::string("\0\0\0\x02\0\0\0\0{}", 10)}) {
    EXPECT_EQ(ReadFileTensor(Write("b.safetensors", header) + ":t").status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(TensorFileTest, NamesThatAreNoFiles) {
  EXPECT_EQ(ReadTensor(Path("missing.npy")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(ReadTensor(Path("missing.npy")).status().message(), HasSubstr("no such file"));
  EXPECT_THAT(ReadTensor("q.txt").status().message(),
              HasSubstr("must be file.npy or file.safetensors:name"));
  std::filesystem::create_directories(Path("folder.npy"));
  EXPECT_THAT(ReadTensor(Path("folder.npy")).status().message(), HasSubstr("not a regular file"));
}

TEST_F(TensorFileTest, IntegersAndFloatsOfOneAxis) {
  const int32_t narrow[3] = {0, 5, -9};
  const int64_t wide[2] = {0, int64_t{1} << 40};
  const auto bytes = [](const void* data, size_t size) {
    return std::string(static_cast<const char*>(data), size);
  };
  EXPECT_THAT(*ReadIntegers(Write("i4.npy", Npy(Dict("<i4", "(3,)"), bytes(narrow, 12)))),
              ElementsAre(0, 5, -9));
  EXPECT_THAT(*ReadIntegers(Write("i8.npy", Npy(Dict("<i8", "(2,)"), bytes(wide, 16)))),
              ElementsAre(0, int64_t{1} << 40));
  EXPECT_THAT(ReadIntegers(Write("f4.npy", Npy(Dict("<f4", "(1,)"), "1234"))).status().message(),
              HasSubstr("is float32 [1], must be int32 or int64"));
  EXPECT_THAT(ReadTensor(Path("i4.npy")).status().message(),
              HasSubstr("is int32 [3], must be float32, float16 or bfloat16"));
  const uint16_t halves[2] = {0x3c00, 0xc000};
  EXPECT_THAT(*ReadFloats(Write("f2.npy", Npy(Dict("<f2", "(2,)"), bytes(halves, 4)))),
              ElementsAre(1.0f, -2.0f));
  EXPECT_FALSE(ReadFloats(Write("2d.npy", Npy(Dict("<f2", "(1, 2)"), bytes(halves, 4)))).ok());
}

}  // namespace
}  // namespace attnd::tools
