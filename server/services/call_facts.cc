#include "server/services/call_facts.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/scheduler/scheduler.h"

namespace attnd::server {

absl::StatusOr<int64_t> DeclaredBytes(
    const std::multimap<grpc::string_ref, grpc::string_ref>& metadata, int64_t max_unary_bytes) {
  const auto [first, last] = metadata.equal_range(kRequestBytesKey);
  if (first == last) return max_unary_bytes;
  if (std::next(first) != last) {
    return absl::InvalidArgumentError(
        absl::StrCat("metadata ", kRequestBytesKey, " is given more than once"));
  }
  const absl::string_view text(first->second.data(), first->second.size());
  int64_t bytes = 0;
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(text, &bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("metadata ", kRequestBytesKey,
                                                   " must be a size in bytes, got \"",
                                                   absl::CHexEscape(text.substr(0, 64)), "\""));
  }
  if (absl::Status status = CheckRequestSize(bytes, max_unary_bytes); !status.ok()) return status;
  return bytes;
}

namespace {

absl::Status Never(absl::Status status) {
  SetRetryPushbackMs(status, -1);
  return status;
}

}  // namespace

absl::Status CheckRequestSize(int64_t bytes, int64_t max_unary_bytes) {
  if (bytes <= max_unary_bytes) return absl::OkStatus();
  return Never(absl::ResourceExhaustedError(
      absl::StrCat("the request of ", bytes, " bytes is over this server's limit of ",
                   max_unary_bytes, " (max_unary_bytes); ComputeStream takes larger ones")));
}

absl::Status CheckStreamSize(int64_t bytes, int64_t max_stream_bytes) {
  if (bytes <= max_stream_bytes) return absl::OkStatus();
  return Never(absl::ResourceExhaustedError(
      absl::StrCat("q, k and v of ", bytes, " bytes are over this server's limit of ",
                   max_stream_bytes, " (max_stream_bytes): split the problem by batch or heads")));
}

TimePoint ToSteady(std::chrono::system_clock::time_point deadline, TimePoint now) {
  // gRPC gives "no deadline" as the largest time; a century is as good.
  constexpr std::chrono::hours kCentury(24 * 365 * 100);
  if (deadline == std::chrono::system_clock::time_point::max()) return kNever;
  const auto wall = std::chrono::system_clock::now();
  if (deadline > wall && deadline - wall > kCentury) return kNever;
  return now + std::chrono::duration_cast<Duration>(deadline - wall);
}

Caller CallerFromPeer(absl::string_view peer) {
  Caller caller;
  caller.is_local = absl::StartsWith(peer, "unix:") || absl::StartsWith(peer, "ipv4:127.") ||
                    absl::StartsWith(peer, "ipv6:[::1]:") ||
                    absl::StartsWith(peer, "ipv6:%5B::1%5D:");
  return caller;
}

}  // namespace attnd::server
