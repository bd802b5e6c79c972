// What a server can be told.
#ifndef ATTND_SERVER_OPTIONS_H_
#define ATTND_SERVER_OPTIONS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/scheduler/scheduler.h"

namespace attnd::server {

inline constexpr char kNoLocalSocket[] = "none";
inline constexpr int64_t kOwnBusyPoll = -1;

// Each has a flag of its name (flags.cc), whose help says what it means.
struct ServerOptions {
  std::string listen = "127.0.0.1:7070";
  std::string http_listen = "127.0.0.1:7071";
  bool insecure_listen = false;
  std::string devices = "auto";
  std::string backend;
  int threads = 0;
  // 0: DefaultIoThreads.
  int io_threads = 0;
  // kOwnBusyPoll: FillIn's.
  int64_t busy_poll_us = kOwnBusyPoll;
  // max_queue_bytes 0: as much as arena_bytes.
  SchedulerOptions scheduler{.max_queue_bytes = 0};
  // Empty: every caller is of the default tenant.
  std::string tenants;
  // Empty: the tenant is told by the address.
  std::string tenant_metadata;
  // Four calls of the largest size at once, or many small ones.
  int64_t receive_bytes = int64_t{1} << 30;
  int64_t max_unary_bytes = int64_t{256} << 20;
  // Payload of one stream. 0: 3 GiB, 6 GiB where there is a GPU; never more than the memory for
  // payloads holds (server.cc).
  int64_t max_stream_bytes = 0;
  // Half for payloads, half for answers, so that neither waits for the other. 0: DefaultArenaBytes.
  int64_t arena_bytes = 0;
  int64_t pinned_bytes = 0;
  int64_t device_bytes = 0;
  // Empty: where clients look for it. kNoLocalSocket: there is none.
  std::string local_socket;
  // 0: no side socket either.
  int64_t max_region_bytes = int64_t{8} << 30;
  // Callers are trusted then (server/regions/README.md).
  bool allow_cuda_ipc = false;
  // Of callers on this host, for the Open Inference Protocol alone (server/regions/README.md).
  bool allow_shm_names = false;
  std::string shm_name_prefix = "attnd-";
  // Each costs a descriptor.
  int64_t max_shm_names = 256;
  // Longer than a balancer takes to see that /readyz has changed.
  int64_t drain_delay_ms = 5'000;
  int64_t drain_timeout_ms = 30'000;
  int64_t default_deadline_ms = 60'000;
};

// A message larger than this is none that protobuf can read.
inline constexpr int64_t kMaxUnaryBytes = (int64_t{1} << 31) - 1;

// What a stream of the largest default size needs, but at most half of `usable_bytes`, and at least
// what one message of `max_unary_bytes` needs.
int64_t DefaultArenaBytes(int64_t usable_bytes, int64_t max_unary_bytes, bool has_gpu);

// Four at least: callers who keep a connection's thread busy should seldom share it with others.
int DefaultIoThreads(int processors);

// Payload of the largest stream by default.
int64_t DefaultStreamBytes(bool has_gpu);

// The options with what the machine decides filled in.
ServerOptions FillIn(ServerOptions options, bool has_gpu);

// OK, or INVALID_ARGUMENT naming the flag, its value, and what would do.
absl::Status Validate(const ServerOptions& options);

}  // namespace attnd::server

#endif  // ATTND_SERVER_OPTIONS_H_
