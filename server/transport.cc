#include "server/transport.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <stdlib.h>

#include <cstdint>
#include <limits>

#include "absl/strings/match.h"

namespace attnd::server {
namespace {

// Per connection. A stream nobody reads yet holds one window, 64 KB: 32 MB.
constexpr int kMaxConcurrentStreams = 512;
// Of methods that answer at once, with what the server knows: all but those that compute.
constexpr int kMaxSyncThreads = 512;
// A client may send keepalive pings this often without being cut off, calls or not.
constexpr int kMinPingIntervalMs = 1000;
// A caller whose machine or link is gone is noticed within the sum of these.
constexpr int kKeepaliveTimeMs = 60'000;
constexpr int kKeepaliveTimeoutMs = 20'000;
// gRPC has memory for the next read before there is anything to read; by itself for as much as it
// read last, so that between calls of 1 MiB a connection holds 1 MiB. Larger reads are no faster.
constexpr int kMaxReadBytes = 64 << 10;
// gRPC's own books: what is received, and slack for connections, streams that wait, and the
// grain of its reads. Only callers that declare too little get this far.
int64_t QuotaBytes(int64_t receive_bytes) {
  return receive_bytes + receive_bytes / 4 + (int64_t{64} << 20);
}

}  // namespace

void SetGrpcEnvironment() {
  setenv("GRPC_POLL_STRATEGY", "poll", 0);
  if (absl::StartsWith(grpc::Version(), "1.51.")) setenv("GRPC_EXPERIMENTS", "-tcp_read_chunks", 0);
}

void ConfigureTransport(grpc::ServerBuilder& builder, const ServerOptions& options) {
  grpc::ResourceQuota quota("attnd");
  quota.Resize(static_cast<size_t>(QuotaBytes(options.receive_bytes)));
  quota.SetMaxThreads(kMaxSyncThreads);
  builder.SetResourceQuota(quota);
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 1);
  // gRPC looks at the size only when it has received all, and refuses without our trailer and our
  // count: the limit is ComputeCall's. Beyond this one, lengths would wrap.
  builder.SetMaxReceiveMessageSize(std::numeric_limits<int>::max());
  builder.SetMaxSendMessageSize(-1);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kMaxReadBytes);
  // The probe's growing windows would take in megabytes of calls that wait for their permit.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxConcurrentStreams);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
}

}  // namespace attnd::server
