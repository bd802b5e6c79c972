// The first pass over a message. Payloads are passed over by their length; everything else is small
// and is copied, as it stands, into a "rest" that protobuf itself parses. So merging, repeated
// fields, packed forms, groups, string checks and unknown fields are protobuf's own, and the only
// rule kept here is where one field ends and the next begins.
#ifndef ATTND_SERVER_WIRE_SCANNER_H_
#define ATTND_SERVER_WIRE_SCANNER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/wire/span_reader.h"
#include "server/wire/wire.h"

namespace google::protobuf {
class Message;
}

namespace attnd::server::wire {

// The payloads of a repeated field, in order.
struct PayloadList {
  size_t max;  // more are refused
  std::vector<Payload> items;
};

// A field that a message's own type has. Without a place for payloads it is part of the rest.
struct ScannedField {
  uint32_t number;
  const char* name;
  Payload* found = nullptr;
  PayloadList* each = nullptr;  // of a repeated field

  bool is_payload() const { return found != nullptr || each != nullptr; }
};

struct ScanRules {
  const char* message;  // its type, for errors
  const char* rest;     // what the rest is called there, ...
  const char* but;      // ... and what it is without
  int64_t max_rest_bytes;
  absl::Span<const ScannedField> fields;
  const char* advice = "";  // what to do about a rest that is too long
};

// OK, or INVALID_ARGUMENT naming both sizes.
absl::Status CheckMessageSize(absl::Span<const ByteSpan> message, const Limits& limits);

class Scanner {
 public:
  // Both outlive it.
  Scanner(absl::Span<const ByteSpan> message, const ScanRules& rules)
      : reader_(message), rules_(rules) {}

  // Finds the payloads. INVALID_ARGUMENT: no message of protobuf's, or its rest is too long.
  absl::Status Run();

  // The rest as the message it is of: INVALID_ARGUMENT naming `inside`, which may be at fault, or
  // UNIMPLEMENTED for an unknown field. After Run().
  absl::Status ParseRest(google::protobuf::Message& message, absl::string_view inside) const;

 private:
  absl::Status Malformed(absl::string_view what) const;
  absl::Status CheckRest(int64_t more_bytes) const;
  absl::Status ReadField();
  absl::Status ReadBytes(uint32_t number, size_t rest_before);
  absl::Status PassOver(const ScannedField& field, int64_t size_bytes);
  absl::Status Keep(uint32_t number, int64_t size_bytes);
  absl::Status CheckLeft(uint32_t number, int64_t size_bytes) const;
  const ScannedField* Find(uint32_t number) const;
  std::string FieldName(uint32_t number) const;

  SpanReader reader_;
  const ScanRules& rules_;
  std::string rest_;  // everything but the payloads, in order
  int64_t open_groups_ = 0;
};

}  // namespace attnd::server::wire

#endif  // ATTND_SERVER_WIRE_SCANNER_H_
