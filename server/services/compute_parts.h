// What calls use of the server.
#ifndef ATTND_SERVER_SERVICES_COMPUTE_PARTS_H_
#define ATTND_SERVER_SERVICES_COMPUTE_PARTS_H_

#include <cstdint>

#include "server/clock.h"
#include "server/executor/dispatcher.h"
#include "server/memory/buffer_pool.h"
#include "server/memory/receive_budget.h"
#include "server/metrics/metrics.h"
#include "server/regions/shm_host.h"
#include "server/services/call_facts.h"
#include "server/services/call_gate.h"
#include "server/services/deadline_watch.h"
#include "server/services/worker_pool.h"
#include "server/wire/wire.h"

namespace attnd::server {

// All of it outlives the calls.
struct ComputeParts {
  Clock* clock = nullptr;
  Metrics* metrics = nullptr;
  CallGate* gate = nullptr;
  DeadlineWatch* deadlines = nullptr;
  ReceiveBudget* receive_budget = nullptr;
  BufferPool* payload_pool = nullptr;
  RegionTable* regions = nullptr;  // null: none are taken
  ShmHost* shm = nullptr;          // null: none is taken
  // The executor's; only its budget is read here.
  const BufferPool* answer_pool = nullptr;
  Dispatcher* dispatcher = nullptr;
  WorkerPool* decoders = nullptr;
  WorkerPool* senders = nullptr;
  // For chunks of streams. Apart from the decoders, which wait for memory that a stream may hold.
  WorkerPool* copiers = nullptr;
  wire::Limits limits;
  TenantSource tenants;
  // Payload of one stream.
  int64_t max_stream_bytes = 0;
  // 0: none.
  int64_t default_deadline_ms = 0;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_COMPUTE_PARTS_H_
