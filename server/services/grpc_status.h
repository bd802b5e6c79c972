// The one place where a status of the server becomes one of gRPC's.
#ifndef ATTND_SERVER_SERVICES_GRPC_STATUS_H_
#define ATTND_SERVER_SERVICES_GRPC_STATUS_H_

#include <grpcpp/server_context.h>

#include "absl/status/status.h"

namespace attnd::server {

// Says that attnd itself answered, and which version.
inline constexpr char kVersionTrailer[] = "attnd-version";
// gRPC's name: milliseconds until the call may be tried again; negative: never.
inline constexpr char kPushbackTrailer[] = "grpc-retry-pushback-ms";
// 1: nothing has been computed, and the regions that the call named are its caller's again.
inline constexpr char kUntouchedTrailer[] = "attnd-untouched";
// gRPC bounds all trailers of a call by 8 KB, and an escaped byte takes three.
inline constexpr size_t kMaxMessageBytes = 2048;

// Same code, message cut to kMaxMessageBytes at a character's edge. Adds the trailers to
// `context`, the call's own traceparent too, so it must run before the call is finished, and once.
grpc::Status ToGrpcStatus(const absl::Status& status, grpc::ServerContext& context);

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_GRPC_STATUS_H_
