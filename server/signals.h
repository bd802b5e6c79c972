// SIGTERM, SIGINT and SIGHUP as events of a thread, with no work in a handler.
#ifndef ATTND_SERVER_SIGNALS_H_
#define ATTND_SERVER_SIGNALS_H_

#include <functional>
#include <thread>

namespace attnd::server {

// Blocks the signals for the calling thread and all that it starts from then on, so it comes
// before any other thread, and ignores SIGPIPE.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // From now on the first SIGTERM or SIGINT calls `on_first`, on a thread of this class; the second
  // one ends the process at once, with 128 + its number. Each SIGHUP calls `on_hangup`, on the same
  // thread. Called once.
  void Listen(std::function<void(int signal)> on_first, std::function<void()> on_hangup);

 private:
  std::thread thread_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SIGNALS_H_
