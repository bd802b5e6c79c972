#include <utility>

#include "absl/strings/str_cat.h"
#include "attnd/v1/attnd.pb.h"
#include "server/wire/scanner.h"

namespace attnd::server::wire {

ScannedRequest::ScannedRequest() = default;
ScannedRequest::ScannedRequest(ScannedRequest&&) noexcept = default;
ScannedRequest& ScannedRequest::operator=(ScannedRequest&&) noexcept = default;
ScannedRequest::~ScannedRequest() = default;

absl::Status CheckMessageSize(absl::Span<const ByteSpan> message, const Limits& limits) {
  const int64_t message_bytes = SpanReader(message).left_bytes();
  if (message_bytes <= limits.max_message_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the message is ", message_bytes, " bytes; the unary limit (max_unary_bytes) is ",
      limits.max_message_bytes, ": split the problem by batch or heads"));
}

absl::StatusOr<ScannedRequest> Scan(absl::Span<const ByteSpan> message, const Limits& limits) {
  if (absl::Status status = CheckMessageSize(message, limits); !status.ok()) return status;
  ScannedRequest found;
  const ScannedField fields[] = {{v1::ComputeRequest::kHeaderFieldNumber, "header"},
                                 {v1::ComputeRequest::kQFieldNumber, "q", &found.q},
                                 {v1::ComputeRequest::kKFieldNumber, "k", &found.k},
                                 {v1::ComputeRequest::kVFieldNumber, "v", &found.v}};
  const ScanRules rules{"ComputeRequest", "header", "q, k and v", limits.max_header_bytes, fields};
  Scanner scanner(message, rules);
  if (absl::Status status = scanner.Run(); !status.ok()) return status;
  v1::ComputeRequest rest;
  if (absl::Status status = scanner.ParseRest(
          rest,
          "a field inside is cut short or malformed, groups do not match, or request_id is not "
          "valid UTF-8");
      !status.ok()) {
    return status;
  }
  if (!rest.has_header()) return absl::InvalidArgumentError("header is missing");
  found.header.reset(rest.release_header());
  return found;
}

}  // namespace attnd::server::wire
