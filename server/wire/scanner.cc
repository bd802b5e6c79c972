#include "server/wire/scanner.h"

#include <climits>

#include "absl/strings/str_cat.h"
#include "google/protobuf/message.h"
#include "google/protobuf/stubs/logging.h"
#include "server/wire/unknown_fields.h"

namespace attnd::server::wire {
namespace {

constexpr int kMaxTagBytes = 5;
constexpr int kMaxLengthBytes = 5;
constexpr int kMaxVarintBytes = 10;
// protobuf's parsers keep 16 bytes of slack below 2 GiB.
constexpr int64_t kMaxFieldBytes = INT_MAX - 16;

enum WireType {
  kVarint = 0,
  kFixed64 = 1,
  kBytes = 2,
  kStartGroup = 3,
  kEndGroup = 4,
  kFixed32 = 5
};

}  // namespace

absl::Status Scanner::Run() {
  while (reader_.left_bytes() > 0) {
    if (absl::Status status = ReadField(); !status.ok()) return status;
    if (absl::Status status = CheckRest(0); !status.ok()) return status;
  }
  if (open_groups_ > 0) {
    return Malformed(absl::StrCat("ends inside ", open_groups_, " open group(s)"));
  }
  return absl::OkStatus();
}

absl::Status Scanner::Malformed(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat("not a ", rules_.message, ": the message ", what,
                                                 ", at byte ", reader_.offset_bytes(), " of ",
                                                 reader_.offset_bytes() + reader_.left_bytes()));
}

absl::Status Scanner::CheckRest(int64_t more_bytes) const {
  const int64_t bytes = static_cast<int64_t>(rest_.size()) + more_bytes;
  if (bytes <= rules_.max_rest_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      rules_.rest, " is at least ", bytes, " bytes, everything but ", rules_.but,
      " counted; the limit (max_header_bytes) is ", rules_.max_rest_bytes, rules_.advice));
}

absl::Status Scanner::ReadField() {
  const size_t rest_before = rest_.size();
  uint64_t raw_tag = 0;
  if (!reader_.ReadVarint(kMaxTagBytes, raw_tag, rest_)) {
    return Malformed("has a tag that is cut short or longer than 5 bytes");
  }
  const uint32_t tag = static_cast<uint32_t>(raw_tag);
  const uint32_t number = tag >> 3;
  if (number == 0) return Malformed("has a field numbered 0");
  uint64_t value = 0;
  switch (tag & 7) {
    case kVarint:
      if (reader_.ReadVarint(kMaxVarintBytes, value, rest_)) return absl::OkStatus();
      return Malformed(absl::StrCat("has a varint that is cut short or longer than 10 bytes in ",
                                    FieldName(number)));
    case kFixed64:
      return Keep(number, 8);
    case kFixed32:
      return Keep(number, 4);
    case kBytes:
      return ReadBytes(number, rest_before);
    case kStartGroup:
      ++open_groups_;
      return absl::OkStatus();
    case kEndGroup:
      if (open_groups_-- > 0) return absl::OkStatus();
      return Malformed(absl::StrCat("ends a group that never began, ", FieldName(number)));
    default:
      return Malformed(
          absl::StrCat("has the unknown wire type ", tag & 7, " in ", FieldName(number)));
  }
}

absl::Status Scanner::ReadBytes(uint32_t number, size_t rest_before) {
  uint64_t length = 0;
  if (!reader_.ReadVarint(kMaxLengthBytes, length, rest_)) {
    return Malformed(absl::StrCat("has a length that is cut short or longer than 5 bytes in ",
                                  FieldName(number)));
  }
  if (length > static_cast<uint64_t>(kMaxFieldBytes)) {
    return Malformed(absl::StrCat("has ", length, " bytes in ", FieldName(number),
                                  "; protobuf allows ", kMaxFieldBytes));
  }
  const int64_t size_bytes = static_cast<int64_t>(length);
  const ScannedField* field = open_groups_ == 0 ? Find(number) : nullptr;
  if (field == nullptr || !field->is_payload()) return Keep(number, size_bytes);
  if (absl::Status status = CheckLeft(number, size_bytes); !status.ok()) return status;
  rest_.resize(rest_before);
  return PassOver(*field, size_bytes);
}

absl::Status Scanner::PassOver(const ScannedField& field, int64_t size_bytes) {
  if (field.each == nullptr) {
    *field.found = {true, reader_.offset_bytes(), size_bytes,
                    field.found->count + 1};  // the last one wins
  } else if (field.each->items.size() < field.each->max) {
    field.each->items.push_back({true, reader_.offset_bytes(), size_bytes, 1});
  } else {
    return absl::InvalidArgumentError(absl::StrCat(field.name, " has at least ",
                                                   field.each->max + 1, " entries; the limit is ",
                                                   field.each->max));
  }
  reader_.Skip(size_bytes);
  return absl::OkStatus();
}

absl::Status Scanner::Keep(uint32_t number, int64_t size_bytes) {
  if (absl::Status status = CheckLeft(number, size_bytes); !status.ok()) return status;
  if (absl::Status status = CheckRest(size_bytes); !status.ok()) return status;
  reader_.AppendTo(size_bytes, rest_);
  return absl::OkStatus();
}

absl::Status Scanner::CheckLeft(uint32_t number, int64_t size_bytes) const {
  if (size_bytes <= reader_.left_bytes()) return absl::OkStatus();
  return Malformed(absl::StrCat("is cut short: ", FieldName(number), " needs ", size_bytes,
                                " bytes and ", reader_.left_bytes(), " are left"));
}

const ScannedField* Scanner::Find(uint32_t number) const {
  for (const ScannedField& field : rules_.fields) {
    if (field.number == number) return &field;
  }
  return nullptr;
}

std::string Scanner::FieldName(uint32_t number) const {
  if (open_groups_ > 0) return absl::StrCat("field ", number, " of a group");
  const ScannedField* field = Find(number);
  return field == nullptr ? absl::StrCat("field ", number)
                          : absl::StrCat("field ", number, " (", field->name, ")");
}

absl::Status Scanner::ParseRest(google::protobuf::Message& message,
                                absl::string_view inside) const {
  {
    const google::protobuf::LogSilencer
        silencer;  // the status below says it; a library never prints
    if (!message.ParseFromString(rest_)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "not a ", rules_.message, ": ", rules_.rest, " (", rest_.size(),
          " bytes, everything but ", rules_.but, " counted) does not parse: ", inside));
    }
  }
  return RefuseUnknownFields(message, rules_.message);
}

}  // namespace attnd::server::wire
