#include "client/tools/tool.h"

#include <malloc.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace attnd::tools {

std::string Explain(const absl::Status& status, const std::string& server) {
  std::string text = absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
  if (absl::IsUnavailable(status) && (absl::StrContains(status.message(), "connect") ||
                                      absl::StrContains(status.message(), "resolution"))) {
    absl::StrAppend(&text, "\nNo server answers at ", server,
                    ". Start one (attnd --listen=", server, ") or name another with --server.");
  }
  return text;
}

absl::Status ReadTransport(const Args& args, Transport* transport) {
  const auto name = args.Get("transport");
  if (!name) return absl::OkStatus();
  for (Transport candidate :
       {Transport::kAuto, Transport::kUnary, Transport::kStream, Transport::kRegion}) {
    if (*name != TransportName(candidate)) continue;
    *transport = candidate;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--transport is \"", *name, "\", must be unary, stream, region or auto"));
}

void TuneProcess() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
  mallopt(M_ARENA_MAX, 2);
  // Debian's abseil looks for cycles of gRPC's locks, as a debug build would.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace attnd::tools
