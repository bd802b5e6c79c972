// What a call says about itself before its message: size, deadline, caller.
#ifndef ATTND_SERVER_SERVICES_CALL_FACTS_H_
#define ATTND_SERVER_SERVICES_CALL_FACTS_H_

#include <grpcpp/support/string_ref.h>

#include <chrono>
#include <cstdint>
#include <map>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/clock.h"
#include "server/request.h"

namespace attnd::server {

// Request metadata: the size of the serialized ComputeRequest, or of the largest message of a
// stream.
inline constexpr char kRequestBytesKey[] = "attnd-request-bytes";

// The size that the caller declared, max_unary_bytes if it declared none. INVALID_ARGUMENT if it is
// no number, or given twice; beyond the limit, as CheckRequestSize.
absl::StatusOr<int64_t> DeclaredBytes(
    const std::multimap<grpc::string_ref, grpc::string_ref>& metadata, int64_t max_unary_bytes);

// OK, or RESOURCE_EXHAUSTED, never to be tried again.
absl::Status CheckRequestSize(int64_t bytes, int64_t max_unary_bytes);

// The same for the payload of a stream.
absl::Status CheckStreamSize(int64_t bytes, int64_t max_stream_bytes);

// gRPC's deadline on the steady clock; kNever if there is none.
TimePoint ToSteady(std::chrono::system_clock::time_point deadline, TimePoint now);

// From gRPC's name of the other end: "ipv4:127.0.0.1:4242", "ipv6:[::1]:4242" (also with its
// brackets as %5B and %5D), "unix:/path".
Caller CallerFromPeer(absl::string_view peer);

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_CALL_FACTS_H_
