// A raw gRPC echo: the least that a unary call of tensors costs on gRPC. Bytes as they come, no
// protobuf; as attnd has to, the server copies them once into memory of its own and answers from
// there, the client sends from the caller's memory and copies the answer into the caller's.
#ifndef ATTND_TESTS_BENCH_RAW_ECHO_H_
#define ATTND_TESTS_BENCH_RAW_ECHO_H_

#include <grpcpp/server.h>

#include <memory>
#include <string>

#include "tests/bench/service_transport.h"

namespace attnd::bench {

// On a free port of 127.0.0.1; null if there is none. For one call at a time.
std::unique_ptr<grpc::Server> ServeRawEcho(int* port);

// To host:port.
absl::StatusOr<std::unique_ptr<Transport>> ConnectToRawEcho(const std::string& address);

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_RAW_ECHO_H_
