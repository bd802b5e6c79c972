// Programs that service_bench runs as children of its own.
#ifndef ATTND_TESTS_BENCH_SERVICE_PROCESS_H_
#define ATTND_TESTS_BENCH_SERVICE_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/bench/service_transport.h"

namespace attnd::bench {

// A child, killed when this goes. Its stderr is ours.
class ChildProcess {
 public:
  // argv[0] is the path of the program. INTERNAL if the system has no process or pipe left.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(std::vector<std::string> argv);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;

  // One line to its stdin, the next line of its stdout back. UNAVAILABLE if it has ended.
  absl::StatusOr<std::string> Ask(const std::string& line);

  bool HasExited();
  // A field of /proc/PID/status, such as "VmHWM:", in bytes; 0 if there is none.
  int64_t StatusBytes(const std::string& field) const;

 private:
  ChildProcess(pid_t pid, FILE* to, FILE* from) : pid_(pid), to_(to), from_(from) {}

  const pid_t pid_;
  FILE* const to_;
  FILE* const from_;
  bool exited_ = false;
};

// The directory of this program, where attnd and echo_bench_server are too.
std::string ProgramDirectory();

// attnd, or the echo server, on free ports of 127.0.0.1.
class ServerProcess {
 public:
  // Ready when it returns; attnd computes on `devices`. DEADLINE_EXCEEDED after 30 s.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(Peer peer,
                                                              const std::string& devices);
  ~ServerProcess();

  // host:port; of attnd followed by a comma and its side socket's path.
  std::string Address(Peer peer) const;
  const ChildProcess& process() const { return *process_; }

 private:
  explicit ServerProcess(std::string directory) : directory_(std::move(directory)) {}

  const std::string directory_;  // of the port file
  std::unique_ptr<ChildProcess> process_;
  std::vector<int> ports_;
};

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_SERVICE_PROCESS_H_
