// The first pass over a message. Payloads are passed over by their length; everything else is small
// and is copied, as it stands, into a "rest" that protobuf itself parses. So merging, repeated
// fields, packed forms, groups, string checks and unknown fields are protobuf's own, and the only
// rule kept here is where one field ends and the next begins.
#include <climits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "attnd/v1/attnd.pb.h"
#include "google/protobuf/stubs/logging.h"
#include "server/wire/span_reader.h"
#include "server/wire/unknown_fields.h"
#include "server/wire/wire.h"

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

class Scanner {
 public:
  Scanner(absl::Span<const ByteSpan> message, int64_t max_rest_bytes, ScannedRequest& found)
      : reader_(message),
        max_rest_bytes_(max_rest_bytes),
        payloads_{{v1::ComputeRequest::kQFieldNumber, "q", found.q},
                  {v1::ComputeRequest::kKFieldNumber, "k", found.k},
                  {v1::ComputeRequest::kVFieldNumber, "v", found.v}} {}

  absl::Status Run() {
    while (reader_.left_bytes() > 0) {
      if (absl::Status status = ReadField(); !status.ok()) return status;
      if (absl::Status status = CheckRest(0); !status.ok()) return status;
    }
    if (open_groups_ > 0) {
      return Malformed(absl::StrCat("ends inside ", open_groups_, " open group(s)"));
    }
    return absl::OkStatus();
  }

  // Everything but the payloads, in order.
  const std::string& rest() const { return rest_; }

 private:
  struct PayloadField {
    uint32_t number;
    const char* name;
    Payload& found;
  };

  absl::Status Malformed(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("not a ComputeRequest: the message ", what,
                                                   ", at byte ", reader_.offset_bytes(), " of ",
                                                   reader_.offset_bytes() + reader_.left_bytes()));
  }

  absl::Status CheckRest(int64_t more_bytes) const {
    const int64_t bytes = static_cast<int64_t>(rest_.size()) + more_bytes;
    if (bytes <= max_rest_bytes_) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("header is at least ", bytes, " bytes, everything but q, k and v counted; ",
                     "the limit (max_header_bytes) is ", max_rest_bytes_));
  }

  absl::Status ReadField() {
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

  absl::Status ReadBytes(uint32_t number, size_t rest_before) {
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
    const PayloadField* payload = open_groups_ == 0 ? FindPayload(number) : nullptr;
    if (payload == nullptr) return Keep(number, size_bytes);
    if (absl::Status status = CheckLeft(number, size_bytes); !status.ok()) return status;
    rest_.resize(rest_before);
    payload->found = {true, reader_.offset_bytes(), size_bytes};  // the last one wins
    reader_.Skip(size_bytes);
    return absl::OkStatus();
  }

  absl::Status Keep(uint32_t number, int64_t size_bytes) {
    if (absl::Status status = CheckLeft(number, size_bytes); !status.ok()) return status;
    if (absl::Status status = CheckRest(size_bytes); !status.ok()) return status;
    reader_.AppendTo(size_bytes, rest_);
    return absl::OkStatus();
  }

  absl::Status CheckLeft(uint32_t number, int64_t size_bytes) const {
    if (size_bytes <= reader_.left_bytes()) return absl::OkStatus();
    return Malformed(absl::StrCat("is cut short: ", FieldName(number), " needs ", size_bytes,
                                  " bytes and ", reader_.left_bytes(), " are left"));
  }

  const PayloadField* FindPayload(uint32_t number) const {
    for (const PayloadField& payload : payloads_) {
      if (payload.number == number) return &payload;
    }
    return nullptr;
  }

  std::string FieldName(uint32_t number) const {
    if (open_groups_ > 0) return absl::StrCat("field ", number, " of a group");
    if (number == v1::ComputeRequest::kHeaderFieldNumber) return "field 1 (header)";
    const PayloadField* payload = FindPayload(number);
    return payload == nullptr ? absl::StrCat("field ", number)
                              : absl::StrCat("field ", number, " (", payload->name, ")");
  }

  SpanReader reader_;
  const int64_t max_rest_bytes_;
  const PayloadField payloads_[3];
  std::string rest_;
  int64_t open_groups_ = 0;
};

}  // namespace

ScannedRequest::ScannedRequest() = default;
ScannedRequest::ScannedRequest(ScannedRequest&&) noexcept = default;
ScannedRequest& ScannedRequest::operator=(ScannedRequest&&) noexcept = default;
ScannedRequest::~ScannedRequest() = default;

absl::StatusOr<ScannedRequest> Scan(absl::Span<const ByteSpan> message, const Limits& limits) {
  const int64_t message_bytes = SpanReader(message).left_bytes();
  if (message_bytes > limits.max_message_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the message is ", message_bytes, " bytes; the unary limit (max_unary_bytes) is ",
        limits.max_message_bytes, ": split the problem by batch or heads"));
  }
  ScannedRequest found;
  Scanner scanner(message, limits.max_header_bytes, found);
  if (absl::Status status = scanner.Run(); !status.ok()) return status;

  v1::ComputeRequest rest;
  {
    const google::protobuf::LogSilencer
        silencer;  // the status below says it; a library never prints
    if (!rest.ParseFromString(scanner.rest())) {
      return absl::InvalidArgumentError(
          absl::StrCat("not a ComputeRequest: header (", scanner.rest().size(),
                       " bytes, everything but q, k and v counted) does not parse: a field inside "
                       "is cut short or malformed, groups do not match, or request_id is not "
                       "valid UTF-8"));
    }
  }
  if (absl::Status status = RefuseUnknownFields(rest, "ComputeRequest"); !status.ok())
    return status;
  if (!rest.has_header()) return absl::InvalidArgumentError("header is missing");
  found.header.reset(rest.release_header());
  return found;
}

}  // namespace attnd::server::wire
