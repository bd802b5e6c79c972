#include "server/executor/give_way.h"

#include <sys/resource.h>
#include <unistd.h>

namespace attnd::server {

void GiveWay() {
  // Linux counts niceness by thread. To be nicer is never refused; were it, calls would only be
  // slower.
  const auto thread = static_cast<id_t>(gettid());
  setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + kNiceOfComputing);
}

}  // namespace attnd::server
