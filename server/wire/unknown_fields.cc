#include "server/wire/unknown_fields.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/unknown_field_set.h"

namespace attnd::server::wire {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::UnknownField;
using google::protobuf::UnknownFieldSet;

const char* WireTypeName(UnknownField::Type type) {
  switch (type) {
    case UnknownField::TYPE_VARINT:
      return "a varint";
    case UnknownField::TYPE_FIXED32:
      return "4 fixed bytes";
    case UnknownField::TYPE_FIXED64:
      return "8 fixed bytes";
    case UnknownField::TYPE_LENGTH_DELIMITED:
      return "bytes with a length";
    case UnknownField::TYPE_GROUP:
      return "a group";
  }
  return "?";
}

absl::Status Unknown(const Descriptor& descriptor, const UnknownField& field,
                     const std::string& path) {
  const std::string where = absl::StrCat(path, " field ", field.number());
  const FieldDescriptor* known = descriptor.FindFieldByNumber(field.number());
  if (known != nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(where, " (", std::string(known->name()), ") came as ",
                     WireTypeName(field.type()), ", which is not the wire type of ",
                     known->is_repeated() ? "repeated " : "", std::string(known->type_name())));
  }
  return absl::UnimplementedError(absl::StrCat(
      where, ", ", WireTypeName(field.type()), ", is ",
      descriptor.IsReservedNumber(field.number()) ? "reserved for a later version"
                                                  : "not known to this version",
      ": it needs a newer server (only fields from ", kFirstHintField, " up are ignored)"));
}

}  // namespace

absl::Status RefuseUnknownFields(const Message& message, const std::string& path) {
  const Reflection& reflection = *message.GetReflection();
  const UnknownFieldSet& unknown = reflection.GetUnknownFields(message);
  for (int i = 0; i < unknown.field_count(); ++i) {
    if (unknown.field(i).number() < kFirstHintField) {
      return Unknown(*message.GetDescriptor(), unknown.field(i), path);
    }
  }
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    absl::Status first;
    for (int i = 0; i < count; ++i) {
      const Message& child = field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                                  : reflection.GetMessage(message, field);
      absl::Status status = RefuseUnknownFields(child, absl::StrCat(path, ".", field->name()));
      // A map has no order: of several the first by its text.
      if (first.ok() || (!status.ok() && status.message() < first.message())) first = status;
      if (!first.ok() && !field->is_map()) break;
    }
    if (!first.ok()) return first;
  }
  return absl::OkStatus();
}

}  // namespace attnd::server::wire
