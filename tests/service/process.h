// The program attnd as a child, as whoever runs it sees it.
#ifndef ATTND_TESTS_SERVICE_PROCESS_H_
#define ATTND_TESTS_SERVICE_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace attnd::testing {

struct ExitedProcess {
  int exit_status = -1;  // 128 + the signal, for one that a signal ended
  std::string output;    // stdout and stderr
};

class AttndProcess {
 public:
  // Listens on free ports unless the flags say otherwise.
  explicit AttndProcess(const std::vector<std::string>& flags);
  // Kills it if it still runs.
  ~AttndProcess();
  AttndProcess(const AttndProcess&) = delete;
  AttndProcess& operator=(const AttndProcess&) = delete;

  // True once it is ready and its ports are known; false if it ends before.
  bool WaitUntilReady();
  int port() const { return port_; }
  int http_port() const { return http_port_; }
  std::string address() const;

  void Signal(int signal) const;
  ExitedProcess WaitForExit();

  // From /proc, in bytes: the most that it ever held, and holds now.
  int64_t PeakRssBytes() const { return StatusBytes("VmHWM:"); }
  int64_t RssBytes() const { return StatusBytes("VmRSS:"); }

 private:
  int64_t StatusBytes(const std::string& field) const;
  bool HasExited();

  std::string directory_;
  pid_t pid_ = -1;
  bool exited_ = false;
  int wait_status_ = 0;
  int port_ = 0;
  int http_port_ = 0;
};

// Runs it to its end.
ExitedProcess RunAttnd(const std::vector<std::string>& flags);

}  // namespace attnd::testing

#endif  // ATTND_TESTS_SERVICE_PROCESS_H_
