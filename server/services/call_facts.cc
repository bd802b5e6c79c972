#include "server/services/call_facts.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/scheduler/scheduler.h"
#include "server/scheduler/tenants.h"

namespace attnd::server {

absl::StatusOr<int64_t> DeclaredBytes(const Metadata& metadata, int64_t max_unary_bytes) {
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

namespace {

// The address in "ipv4:10.0.0.7:42" or "ipv6:%5B::1%5D:42"; an IPv4 address within IPv6 as itself.
absl::string_view AddressOf(absl::string_view peer) {
  if (absl::StartsWith(peer, "unix:")) return "unix";
  peer = peer.substr(0, peer.rfind(':'));
  for (const absl::string_view prefix : {"ipv4:", "ipv6:", "[", "%5B", "::ffff:"}) {
    absl::ConsumePrefix(&peer, prefix);
  }
  for (const absl::string_view suffix : {"]", "%5D"}) absl::ConsumeSuffix(&peer, suffix);
  return peer;
}

absl::string_view TenantOf(absl::string_view peer, const Metadata& metadata,
                           const TenantSource& source) {
  if (!source.has_tenants) return kDefaultTenant;
  absl::string_view name = AddressOf(peer);
  if (!source.metadata_key.empty()) {
    const auto [first, last] = metadata.equal_range(source.metadata_key);
    if (first != last) {
      // Twice: the caller's own beside the proxy's.
      if (std::next(first) != last) return kDefaultTenant;
      name = {first->second.data(), first->second.size()};
    }
  }
  return IsTenantName(name) ? name : kDefaultTenant;
}

bool IsHex(absl::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

bool IsZero(absl::string_view text) {
  return text.find_first_not_of('0') == absl::string_view::npos;
}

}  // namespace

Caller CallerOf(absl::string_view peer, const Metadata& metadata, const TenantSource& source) {
  Caller caller;
  caller.tenant = std::string(TenantOf(peer, metadata, source));
  caller.is_local = absl::StartsWith(peer, "unix:") || absl::StartsWith(peer, "ipv4:127.") ||
                    absl::StartsWith(peer, "ipv6:[::1]:") ||
                    absl::StartsWith(peer, "ipv6:%5B::1%5D:");
  return caller;
}

ShmOfCall ShmOf(ShmHost* host, absl::string_view peer, const Metadata& metadata,
                const TenantSource& source) {
  if (host == nullptr) return ShmOfCall();
  return ShmOfCall(host, std::string(peer), CallerOf(peer, metadata, source).tenant);
}

std::string TraceparentOf(const Metadata& metadata) {
  const auto found = metadata.find(kTraceparentKey);
  if (found == metadata.end()) return "";
  const absl::string_view text(found->second.data(), found->second.size());
  // version-trace id-parent id-flags: 2, 32, 16 and 2 digits.
  const bool is_whole = text.size() == 55 && text[2] == '-' && text[35] == '-' && text[52] == '-' &&
                        IsHex(text.substr(0, 2)) && IsHex(text.substr(3, 32)) &&
                        IsHex(text.substr(36, 16)) && IsHex(text.substr(53));
  if (!is_whole || absl::StartsWith(text, "ff") || IsZero(text.substr(3, 32)) ||
      IsZero(text.substr(36, 16))) {
    return "";
  }
  return std::string(text);
}

}  // namespace attnd::server
