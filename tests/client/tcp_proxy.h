// A TCP proxy on loopback that can fail as networks and machines do.
#ifndef ATTND_TESTS_CLIENT_TCP_PROXY_H_
#define ATTND_TESTS_CLIENT_TCP_PROXY_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "kernels/sync.h"

namespace attnd::testing {

class TcpProxy {
 public:
  // Forwards to 127.0.0.1:`port`.
  explicit TcpProxy(int port);
  ~TcpProxy();

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int accepted() const { return accepted_; }
  int64_t forwarded_bytes() const { return forwarded_bytes_; }

  // The connections of now go silent, both ways, and stay open: a frozen machine. New ones work.
  void FreezeConnections() ABSL_LOCKS_EXCLUDED(mutex_);
  // The connections of now are reset: a killed process.
  void CutConnections() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Connection {
    int client = -1;
    int server = -1;
    std::atomic<bool> frozen{false};
    std::atomic<bool> ended{false};
    std::thread pump;
  };

  void Accept() ABSL_LOCKS_EXCLUDED(mutex_);
  void Pump(Connection* connection);

  const int server_port_;
  int port_ = 0;
  int listener_ = -1;
  std::atomic<bool> stopping_{false};
  std::atomic<int> accepted_{0};
  std::atomic<int64_t> forwarded_bytes_{0};
  Mutex mutex_;
  std::vector<std::unique_ptr<Connection>> connections_ ABSL_GUARDED_BY(mutex_);
  std::thread acceptor_;
};

}  // namespace attnd::testing

#endif  // ATTND_TESTS_CLIENT_TCP_PROXY_H_
