// What gRPC is told of limits and connections.
#ifndef ATTND_SERVER_TRANSPORT_H_
#define ATTND_SERVER_TRANSPORT_H_

#include <grpcpp/server_builder.h>

#include "server/options.h"

namespace attnd::server {

// Has every thread of a RawServer wait for its own connections alone. For the whole process, before
// anything of gRPC's is made; what the environment says (GRPC_POLL_STRATEGY) is left alone.
void UsePolling();

// Before the server is built.
void ConfigureTransport(grpc::ServerBuilder& builder, const ServerOptions& options);

}  // namespace attnd::server

#endif  // ATTND_SERVER_TRANSPORT_H_
