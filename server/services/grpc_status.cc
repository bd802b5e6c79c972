#include "server/services/grpc_status.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "server/scheduler/scheduler.h"
#include "server/services/call_facts.h"

namespace attnd::server {
namespace {

std::string Shortened(absl::string_view message) {
  if (message.size() <= kMaxMessageBytes) return std::string(message);
  size_t end = kMaxMessageBytes;
  while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(message.substr(0, end), "...");
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContext& context) {
  context.AddTrailingMetadata(kVersionTrailer, ATTND_VERSION);
  const std::string traceparent = TraceparentOf(context.client_metadata());
  if (!traceparent.empty()) context.AddTrailingMetadata(kTraceparentKey, traceparent);
  if (status.ok()) return grpc::Status::OK;
  if (const absl::optional<int64_t> pushback_ms = RetryPushbackMs(status)) {
    context.AddTrailingMetadata(kPushbackTrailer, absl::StrCat(*pushback_ms));
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), Shortened(status.message()));
}

}  // namespace attnd::server
