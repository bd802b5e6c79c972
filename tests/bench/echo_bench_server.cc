// echo_bench_server: the baselines of service_bench, as plain as they can be had: a protobuf echo
// on gRPC's synchronous and on its callback API, and a raw TCP socket, with malloc as it is; or the
// raw echo (raw_echo.h), with malloc as attnd has it.
#include <arpa/inet.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/tools/tool.h"
#include "tests/bench/echo.grpc.pb.h"
#include "tests/bench/raw_echo.h"
#include "tests/bench/socket_io.h"

namespace attnd::bench {
namespace {

class SyncEcho final : public Echo::Service {
  grpc::Status Echo(grpc::ServerContext*, const EchoMessage* request,
                    EchoMessage* response) override {
    response->set_payload(request->payload());
    return grpc::Status::OK;
  }
};

class CallbackEcho final : public Echo::CallbackService {
  grpc::ServerUnaryReactor* Echo(grpc::CallbackServerContext* context, const EchoMessage* request,
                                 EchoMessage* response) override {
    response->set_payload(request->payload());
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

std::unique_ptr<grpc::Server> Serve(grpc::Service* service, int* port) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), port);
  builder.RegisterService(service);
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  return builder.BuildAndStart();
}

// A length in 8 bytes, then as many bytes; they go back when all are there.
void EchoSocket(int fd) {
  std::vector<unsigned char> payload;
  for (uint64_t size = 0; ReadAll(fd, &size, sizeof(size));) {
    payload.resize(size);
    if (!ReadAll(fd, payload.data(), size) || !WriteAll(fd, payload.data(), size)) break;
  }
  close(fd);
}

// The listening socket, or -1.
int ListenOnSocket(int* port) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (listener < 0 || bind(listener, generic, size) != 0 || listen(listener, 16) != 0 ||
      getsockname(listener, generic, &size) != 0) {
    return -1;
  }
  *port = ntohs(address.sin_port);
  return listener;
}

// Ports, a line each: synchronous, callback, socket; or the raw one. Whole or not at all.
bool WritePortFile(const std::string& path, const std::vector<int>& ports) {
  const std::string unfinished = path + ".new";
  std::ofstream file(unfinished);
  for (const int port : ports) file << port << "\n";
  file.close();
  return file && std::rename(unfinished.c_str(), path.c_str()) == 0;
}

int NotListening() {
  std::fprintf(stderr, "echo_bench_server: cannot listen on 127.0.0.1\n");
  return 1;
}
int NotWritten(const std::string& port_file) {
  std::fprintf(stderr, "echo_bench_server: %s cannot be written\n", port_file.c_str());
  return 1;
}

int RawMain(const std::string& port_file) {
  tools::TuneProcess();
  int port = 0;
  const auto server = ServeRawEcho(&port);
  if (server == nullptr) return NotListening();
  if (!WritePortFile(port_file, {port})) return NotWritten(port_file);
  server->Wait();
  return 0;
}

int Main(const std::string& port_file) {
  SyncEcho sync_echo;
  CallbackEcho callback_echo;
  std::vector<int> ports(3);
  const auto sync_server = Serve(&sync_echo, &ports[0]);
  const auto callback_server = Serve(&callback_echo, &ports[1]);
  const int listener = ListenOnSocket(&ports[2]);
  if (sync_server == nullptr || callback_server == nullptr || listener < 0) return NotListening();
  if (!WritePortFile(port_file, ports)) return NotWritten(port_file);
  for (;;) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return 1;
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    std::thread(EchoSocket, fd).detach();
  }
}

}  // namespace
}  // namespace attnd::bench

int main(int argc, char** argv) {
  const bool raw = argc == 3 && std::string(argv[2]) == "raw";
  if (argc != 2 && !raw) {
    std::fprintf(stderr, "usage: echo_bench_server PORT_FILE [raw]; runs until it is killed\n");
    return 2;
  }
  return raw ? attnd::bench::RawMain(argv[1]) : attnd::bench::Main(argv[1]);
}
