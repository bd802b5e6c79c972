// What gRPC is told of limits and connections.
#ifndef ATTND_SERVER_TRANSPORT_H_
#define ATTND_SERVER_TRANSPORT_H_

#include <grpcpp/server_builder.h>

#include "server/options.h"

namespace attnd::server {

// For the whole process, before anything of gRPC's is made; what the environment says is left
// alone.
// - GRPC_POLL_STRATEGY: every thread of a RawServer waits for its own connections alone.
// - GRPC_EXPERIMENTS: a connection reads at most what ConfigureTransport allows at once. Of gRPC
//   1.51 only, whose experiment it is.
void SetGrpcEnvironment();

// Before the server is built.
void ConfigureTransport(grpc::ServerBuilder& builder, const ServerOptions& options);

}  // namespace attnd::server

#endif  // ATTND_SERVER_TRANSPORT_H_
