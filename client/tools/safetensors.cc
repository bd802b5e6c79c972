#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "client/tools/file_reader.h"
#include "nlohmann/json.hpp"

namespace attnd::tools {
namespace {

// Room for tens of thousands of tensors.
constexpr int64_t kMaxHeaderBytes = 16 << 20;

struct Entry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // bytes from the end of the header
  int64_t end = 0;
};

absl::optional<ElementType> TypeOf(const std::string& dtype) {
  if (dtype == "F32") return ElementType::kFloat32;
  if (dtype == "F16") return ElementType::kFloat16;
  if (dtype == "BF16") return ElementType::kBFloat16;
  if (dtype == "I32") return ElementType::kInt32;
  if (dtype == "I64") return ElementType::kInt64;
  return absl::nullopt;
}

// Whole numbers that fit int64, and nothing else.
bool ReadNumbers(const nlohmann::json& json, std::vector<int64_t>* numbers) {
  if (!json.is_array()) return false;
  for (const nlohmann::json& number : json) {
    if (!number.is_number_unsigned() || number.get<uint64_t>() > uint64_t{INT64_MAX}) return false;
    numbers->push_back(number.get<int64_t>());
  }
  return true;
}

bool ReadEntry(const std::string& name, const nlohmann::json& json, Entry* entry) {
  if (!json.is_object() || !json.contains("dtype") || !json["dtype"].is_string() ||
      !json.contains("shape") || !json.contains("data_offsets")) {
    return false;
  }
  std::vector<int64_t> offsets;
  if (!ReadNumbers(json["shape"], &entry->shape) || !ReadNumbers(json["data_offsets"], &offsets) ||
      offsets.size() != 2) {
    return false;
  }
  entry->name = name;
  entry->dtype = json["dtype"].get<std::string>();
  entry->begin = offsets[0];
  entry->end = offsets[1];
  return true;
}

// One after another from 0 to the end of the file, each as long as its shape says.
absl::Status CheckEntries(const FileReader& file, std::vector<Entry>& entries, int64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t at = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != at || entry.end < entry.begin || entry.end > data_bytes) {
      return file.Error(absl::StrCat("tensor \"", entry.name, "\" lies at ", entry.begin, "..",
                                     entry.end, "; must begin at ", at, " and end within the ",
                                     data_bytes, " bytes of data"));
    }
    at = entry.end;
    const absl::optional<ElementType> type = TypeOf(entry.dtype);
    if (!type) continue;  // of no use here, and no harm
    const absl::StatusOr<int64_t> bytes = ShapeBytes(entry.shape, *type);
    if (!bytes.ok()) {
      return file.Error(absl::StrCat("tensor \"", entry.name, "\" ", bytes.status().message()));
    }
    if (*bytes != entry.end - entry.begin) {
      return file.Error(absl::StrCat("tensor \"", entry.name, "\" has ", entry.end - entry.begin,
                                     " bytes, its shape means ", *bytes));
    }
  }
  if (at != data_bytes) {
    return file.Error(absl::StrCat("has ", data_bytes, " bytes of data, its tensors end at ", at));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Entry>> ReadEntries(FileReader& file, int64_t header_bytes) {
  const auto text = file.Read(8, header_bytes);
  if (!text.ok()) return text.status();
  const nlohmann::json json = nlohmann::json::parse(text->begin(), text->end(), nullptr,
                                                    /*allow_exceptions=*/false);
  if (!json.is_object()) return file.Error("has a header that is not a JSON object");
  std::vector<Entry> entries;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") continue;
    Entry entry;
    if (!ReadEntry(name, value, &entry)) {
      return file.Error(
          absl::StrCat("tensor \"", name, "\" lacks a good dtype, shape or data_offsets"));
    }
    entries.push_back(std::move(entry));
  }
  const absl::Status status = CheckEntries(file, entries, file.size_bytes() - 8 - header_bytes);
  if (!status.ok()) return status;
  return entries;
}

}  // namespace

absl::StatusOr<FileTensor> ReadSafetensors(const std::string& path, const std::string& name) {
  absl::StatusOr<FileReader> file = FileReader::Open(path);
  if (!file.ok()) return file.status();
  const auto length = file->Read(0, 8);
  if (!length.ok()) return length.status();
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | (*length)[i];
  if (header_bytes > static_cast<uint64_t>(kMaxHeaderBytes)) {
    return file->Error(
        absl::StrCat("has a header of ", header_bytes, " bytes, at most ", kMaxHeaderBytes));
  }
  const auto entries = ReadEntries(*file, static_cast<int64_t>(header_bytes));
  if (!entries.ok()) return entries.status();
  const auto names = absl::StrJoin(
      *entries, ", ", [](std::string* out, const Entry& entry) { out->append(entry.name); });
  const auto found = std::find_if(entries->begin(), entries->end(), [&](const Entry& entry) {
    return name.empty() ? entries->size() == 1 : entry.name == name;
  });
  if (found == entries->end()) {
    return absl::NotFoundError(
        name.empty() ? absl::StrCat(path, ": name a tensor, as in ", path, ":name; it has: ", names)
                     : absl::StrCat(path, ": has no tensor \"", name, "\"; it has: ", names));
  }
  const absl::optional<ElementType> type = TypeOf(found->dtype);
  if (!type) {
    return file->Error(absl::StrCat("tensor \"", found->name, "\" has dtype ", found->dtype,
                                    ", must be F32, F16 or BF16"));
  }
  auto data =
      file->Read(8 + static_cast<int64_t>(header_bytes) + found->begin, found->end - found->begin);
  if (!data.ok()) return data.status();
  return FileTensor{*type, found->shape, *std::move(data)};
}

}  // namespace attnd::tools
