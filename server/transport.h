// What gRPC is told of limits and connections.
#ifndef ATTND_SERVER_TRANSPORT_H_
#define ATTND_SERVER_TRANSPORT_H_

#include <grpcpp/server_builder.h>

#include "server/options.h"

namespace attnd::server {

// Before the server is built.
void ConfigureTransport(grpc::ServerBuilder& builder, const ServerOptions& options);

}  // namespace attnd::server

#endif  // ATTND_SERVER_TRANSPORT_H_
