#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "client/tools/file_reader.h"

namespace attnd::tools {
namespace {

// numpy writes a few dozen bytes for any tensor this program can send.
constexpr int64_t kMaxHeaderBytes = 64 << 10;

struct NpyHeader {
  absl::optional<std::string> descr;
  absl::optional<bool> fortran_order;
  absl::optional<std::vector<int64_t>> shape;
};

// The header is a Python dict of three known keys; each function reads one thing off the front.
void SkipSpace(absl::string_view& text) { text = absl::StripLeadingAsciiWhitespace(text); }

bool Take(absl::string_view& text, absl::string_view token) {
  SkipSpace(text);
  return absl::ConsumePrefix(&text, token);
}

bool TakeString(absl::string_view& text, std::string* value) {
  SkipSpace(text);
  if (text.empty() || (text[0] != '\'' && text[0] != '"')) return false;
  const size_t end = text.find(text[0], 1);
  if (end == absl::string_view::npos) return false;
  *value = std::string(text.substr(1, end - 1));
  text.remove_prefix(end + 1);
  return true;
}

bool TakeTuple(absl::string_view& text, std::vector<int64_t>* values) {
  if (!Take(text, "(")) return false;
  while (!Take(text, ")")) {
    SkipSpace(text);
    size_t digits = 0;
    while (digits < text.size() && absl::ascii_isdigit(text[digits])) ++digits;
    int64_t value = 0;
    if (!absl::SimpleAtoi(text.substr(0, digits), &value)) return false;
    values->push_back(value);
    text.remove_prefix(digits);
    if (!Take(text, ",") && !absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), ")")) {
      return false;
    }
  }
  return true;
}

bool TakeEntry(absl::string_view& text, NpyHeader* header) {
  std::string key;
  if (!TakeString(text, &key) || !Take(text, ":")) return false;
  if (key == "descr") {
    header->descr.emplace();
    return TakeString(text, &*header->descr);
  }
  if (key == "fortran_order") {
    if (Take(text, "True")) {
      header->fortran_order = true;
    } else if (Take(text, "False")) {
      header->fortran_order = false;
    }
    return header->fortran_order.has_value();
  }
  if (key == "shape") {
    header->shape.emplace();
    return TakeTuple(text, &*header->shape);
  }
  return false;
}

bool ParseHeader(absl::string_view text, NpyHeader* header) {
  if (!Take(text, "{")) return false;
  while (!Take(text, "}")) {
    if (!TakeEntry(text, header)) return false;
    if (!Take(text, ",") && !absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "}")) {
      return false;
    }
  }
  SkipSpace(text);
  return text.empty() && header->descr && header->fortran_order && header->shape;
}

absl::StatusOr<ElementType> TypeOf(const FileReader& file, const std::string& descr) {
  if (descr == "<f4") return ElementType::kFloat32;
  if (descr == "<f2") return ElementType::kFloat16;
  if (descr == "<i4") return ElementType::kInt32;
  if (descr == "<i8") return ElementType::kInt64;
  const char* advice = "";
  if (absl::StartsWith(descr, ">")) advice = "; big-endian files are not read";
  if (absl::StrContains(descr, "f8")) advice = "; convert float64 with astype(\"float32\")";
  if (absl::StrContains(descr, "V2")) advice = "; save bfloat16 as .safetensors";
  return file.Error(absl::StrCat("has dtype \"", descr, "\", must be <f4 or <f2", advice));
}

}  // namespace

absl::StatusOr<FileTensor> ReadNpy(const std::string& path) {
  absl::StatusOr<FileReader> file = FileReader::Open(path);
  if (!file.ok()) return file.status();
  if (file->size_bytes() < 12) return file->Error("is not an .npy file");
  const auto preamble = file->Read(0, 12);
  if (!preamble.ok()) return preamble.status();
  if (std::memcmp(preamble->data(), "\x93NUMPY", 6) != 0) {
    return file->Error("is not an .npy file");
  }
  const unsigned char* at = preamble->data();
  if (at[6] != 1 && at[6] != 2) {
    return file->Error(absl::StrCat("is .npy version ", at[6], ", must be 1 or 2"));
  }
  const int64_t begin = at[6] == 1 ? 10 : 12;
  int64_t header_bytes = at[8] + (at[9] << 8);
  if (at[6] == 2) header_bytes += (int64_t{at[10]} << 16) + (int64_t{at[11]} << 24);
  if (header_bytes > kMaxHeaderBytes) {
    return file->Error(
        absl::StrCat("has a header of ", header_bytes, " bytes, at most ", kMaxHeaderBytes));
  }
  const auto text = file->Read(begin, header_bytes);
  if (!text.ok()) return text.status();
  NpyHeader header;
  if (!ParseHeader(absl::string_view(reinterpret_cast<const char*>(text->data()), text->size()),
                   &header)) {
    return file->Error("has a header that is not one of numpy's");
  }
  if (*header.fortran_order) {
    return file->Error("is in Fortran order; save numpy.ascontiguousarray of it");
  }
  const auto type = TypeOf(*file, *header.descr);
  if (!type.ok()) return type.status();
  const auto bytes = ShapeBytes(*header.shape, *type);
  if (!bytes.ok()) return file->Error(bytes.status().message());
  if (*bytes != file->size_bytes() - begin - header_bytes) {
    return file->Error(absl::StrCat("holds ", file->size_bytes() - begin - header_bytes,
                                    " bytes of data, its shape means ", *bytes));
  }
  auto data = file->Read(begin + header_bytes, *bytes);
  if (!data.ok()) return data.status();
  return FileTensor{*type, *std::move(header.shape), *std::move(data)};
}

}  // namespace attnd::tools
