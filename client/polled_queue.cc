#include "client/polled_queue.h"

#include <algorithm>

#include "client/grpc_time.h"

namespace attnd::client {

absl::optional<PolledQueue::Event> PolledQueue::NextUntil(gpr_timespec until) {
  void* tag = nullptr;
  bool ok = false;
  if (queue_.AsyncNext(&tag, &ok, until) != grpc::CompletionQueue::GOT_EVENT) return absl::nullopt;
  return Event{tag, ok};
}

absl::optional<PolledQueue::Event> PolledQueue::Next() {
  return NextUntil(gpr_inf_past(GPR_CLOCK_MONOTONIC));
}

absl::optional<PolledQueue::Event> PolledQueue::WaitForNext(TimePoint until) {
  while (std::chrono::steady_clock::now() < std::min(asleep_from_, until)) {
    if (const absl::optional<Event> event = Next()) return event;
  }
  return NextUntil(ToGrpc(until));
}

void PolledQueue::Drain() {
  queue_.Shutdown();
  while (NextUntil(gpr_inf_future(GPR_CLOCK_MONOTONIC))) {
  }
}

}  // namespace attnd::client
