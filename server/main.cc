// attnd: exact attention as a service.
#include <malloc.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <future>
#include <iostream>
#include <mutex>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/flags.h"
#include "server/listen_address.h"
#include "server/log.h"
#include "server/probe.h"
#include "server/server.h"
#include "server/signals.h"
#include "server/transport.h"

namespace attnd::server {
namespace {

enum ExitStatus { kClean = 0, kNotStarted = 1, kCallsCut = 3, kDeviceLost = 4 };

// Page faults cost more than anything else that is done with a large message: memory that gRPC has
// touched is kept, by one arena: of several each would keep as much as its largest messages took,
// beyond the receive budget together. The bounds are those of the budget, not malloc's.
void TuneMalloc() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_TOP_PAD, 64 << 20);
  mallopt(M_ARENA_MAX, 1);
}

// Debian's abseil looks for cycles of locks, as a debug build would, and gRPC takes many: 7 % of
// the processor's time when calls are small.
void TuneLocks() { absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore); }

int Fail(const absl::Status& status, int exit_status) {
  std::cerr << "attnd: " << status.message() << std::endl;
  return exit_status;
}

int RunProbe(const std::string& listen) {
  const absl::StatusOr<ListenAddress> address = ParseListenAddress(listen);
  const absl::Status status = address.ok() ? Probe(*address) : address.status();
  return status.ok() ? kClean : Fail(status, kNotStarted);
}

// Whole or not at all: whoever waits for the file never sees half of it.
absl::Status WritePortFile(const std::string& path, const Server& server) {
  const std::string unfinished = path + ".new";
  std::ofstream file(unfinished);
  file << server.port() << "\n" << server.http_port() << "\n";
  file.close();
  if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError("--port_file=" + path + ": cannot be written");
  }
  return absl::OkStatus();
}

// Why the server leaves; the first reason counts.
class Departure {
 public:
  void Begin(ExitStatus status) {
    std::call_once(once_, [&] { begun_.set_value(status); });
  }
  ExitStatus Wait() { return begun_.get_future().get(); }

 private:
  std::once_flag once_;
  std::promise<ExitStatus> begun_;
};

// Returns only if the server cannot start.
int Serve(const CommandLine& line, Signals& signals) {
  Departure departure;
  auto server =
      Server::Start(line.server, {}, [&](const absl::Status&) { departure.Begin(kDeviceLost); });
  if (!server.ok()) return Fail(server.status(), kNotStarted);
  signals.Listen([&](int) { departure.Begin(kClean); },
                 [&] {
                   // Without a file it is what it always was: the terminal is gone.
                   if (line.server.tenants.empty()) return departure.Begin(kClean);
                   (*server)->ReloadTenants();
                 });
  const DeviceDescription first = (*server)->devices().front();
  LogEvent(LogLevel::kInfo, "ready",
           {{"version", ATTND_VERSION},
            {"listen", line.server.listen},
            {"port", (*server)->port()},
            {"http_port", (*server)->http_port()},
            {"device", first.name},
            {"backend", first.backend},
            {"reason", first.backend_reason}});
  if (!line.port_file.empty()) {
    const absl::Status status = WritePortFile(line.port_file, **server);
    if (!status.ok()) return Fail(status, kNotStarted);
  }
  const ExitStatus why = departure.Wait();
  const ExitStatus status = (*server)->Drain() || why != kClean ? why : kCallsCut;
  LogEvent(LogLevel::kInfo, "stopped", {{"exit_status", status}});
  // Not by way of gRPC's shutdown: it ends calls that come at this very moment as CANCELLED, while
  // a connection that closes tells their callers UNAVAILABLE, to be tried elsewhere. And a kernel
  // that still runs for a call that was cut off ends with the process.
  _exit(status);
}

int Main(int argc, char** argv) {
  Signals signals;
  TuneMalloc();
  TuneLocks();
  SetGrpcEnvironment();
  const absl::StatusOr<CommandLine> line = ParseCommandLine(argc, argv);
  if (!line.ok()) return Fail(line.status(), kBadFlagsExit);
  if (line->probe) return RunProbe(line->server.listen);
  if (absl::Status status = SetUpLog(line->log_level); !status.ok()) {
    return Fail(status, kBadFlagsExit);
  }
  return Serve(*line, signals);
}

}  // namespace
}  // namespace attnd::server

int main(int argc, char** argv) { return attnd::server::Main(argc, argv); }
