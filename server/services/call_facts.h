// What a call says about itself before its message: size, deadline, caller.
#ifndef ATTND_SERVER_SERVICES_CALL_FACTS_H_
#define ATTND_SERVER_SERVICES_CALL_FACTS_H_

#include <grpcpp/support/string_ref.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/clock.h"
#include "server/regions/shm_host.h"
#include "server/request.h"

namespace attnd::server {

// Request metadata: the size of the serialized ComputeRequest, or of the largest message of a
// stream.
inline constexpr char kRequestBytesKey[] = "attnd-request-bytes";

using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;

// The size that the caller declared, max_unary_bytes if it declared none. INVALID_ARGUMENT if it is
// no number, or given twice; beyond the limit, as CheckRequestSize.
absl::StatusOr<int64_t> DeclaredBytes(const Metadata& metadata, int64_t max_unary_bytes);

// OK, or RESOURCE_EXHAUSTED, never to be tried again.
absl::Status CheckRequestSize(int64_t bytes, int64_t max_unary_bytes);

// The same for the payload of a stream.
absl::Status CheckStreamSize(int64_t bytes, int64_t max_stream_bytes);

// gRPC's deadline on the steady clock; kNever if there is none.
TimePoint ToSteady(std::chrono::system_clock::time_point deadline, TimePoint now);

// By what a caller's tenant is told.
struct TenantSource {
  // There are tenants other than the default one.
  bool has_tenants = false;
  // Metadata that a proxy sets, whom all callers come through and who lets none of theirs pass;
  // empty: nobody's word is taken.
  std::string metadata_key;
};

// From gRPC's name of the other end: "ipv4:127.0.0.1:4242", "ipv6:[::1]:4242" (also with its
// brackets as %5B and %5D), "unix:/path". The tenant is what the metadata says; without it the
// address, or "unix", as gRPC does not tell whose process is at the other end of a Unix socket. The
// default one where there are no tenants, or where the metadata is given twice or is no name.
Caller CallerOf(absl::string_view peer, const Metadata& metadata, const TenantSource& source);

// A call's way to its caller's shared memory; `host` null: none is taken.
ShmOfCall ShmOf(ShmHost* host, absl::string_view peer, const Metadata& metadata,
                const TenantSource& source);

// The metadata traceparent, if there is one as W3C's Trace Context has it; else empty.
inline constexpr char kTraceparentKey[] = "traceparent";
std::string TraceparentOf(const Metadata& metadata);

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_CALL_FACTS_H_
