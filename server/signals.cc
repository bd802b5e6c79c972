#include "server/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

#include "server/log.h"

namespace attnd::server {
namespace {

constexpr int kEndOfThread = SIGUSR1;

sigset_t Awaited() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, kEndOfThread}) sigaddset(&set, signal);
  return set;
}

}  // namespace

Signals::Signals() {
  const sigset_t awaited = Awaited();
  pthread_sigmask(SIG_BLOCK, &awaited, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
}

Signals::~Signals() {
  if (!thread_.joinable()) return;
  pthread_kill(thread_.native_handle(), kEndOfThread);
  thread_.join();
}

void Signals::Listen(std::function<void(int signal)> on_first, std::function<void()> on_hangup) {
  thread_ = std::thread([on_first = std::move(on_first), on_hangup = std::move(on_hangup)] {
    const sigset_t awaited = Awaited();
    bool second = false;
    for (int signal = 0; sigwait(&awaited, &signal) == 0 && signal != kEndOfThread;) {
      if (signal == SIGHUP) {
        on_hangup();
        continue;
      }
      LogEvent(LogLevel::kInfo, second ? "second_signal" : "signal", {{"signal", signal}});
      if (second) _exit(128 + signal);
      second = true;
      on_first(signal);
    }
  });
}

}  // namespace attnd::server
