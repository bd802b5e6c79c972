// The client side of a health check, for containers that have no other client.
#ifndef ATTND_SERVER_PROBE_H_
#define ATTND_SERVER_PROBE_H_

#include "absl/status/status.h"
#include "server/listen_address.h"

namespace attnd::server {

// Asks the server that listens at `address` (a wildcard address is asked over loopback), through
// grpc.health.v1, within two seconds. OK if it is serving; UNAVAILABLE with the reason otherwise.
absl::Status Probe(ListenAddress address);

}  // namespace attnd::server

#endif  // ATTND_SERVER_PROBE_H_
