#include "server/options.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/registry.h"
#include "server/listen_address.h"

namespace attnd::server {
namespace {

constexpr int64_t kMaxThreads = 1024;
constexpr int64_t kMaxCount = 1'000'000;
// Each holds a descriptor open.
constexpr int64_t kMaxShmNames = 65'536;
constexpr int64_t kMaxBytes = int64_t{1} << 50;
constexpr int64_t kMaxMs = int64_t{24} * 3600 * 1000;
// As long as large problems take on a GPU, whose callers come back then; where there are processors
// to spare.
constexpr int64_t kGpuBusyPollUs = 5000;
constexpr int kLeastForBusyPoll = 4;

absl::Status Invalid(absl::string_view flag, const absl::AlphaNum& value,
                     const absl::AlphaNum& why) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", value, ": ", why));
}

absl::Status CheckAddress(absl::string_view flag, const std::string& text, bool insecure,
                          bool may_be_unix) {
  const absl::StatusOr<ListenAddress> address = ParseListenAddress(text);
  if (!address.ok()) return Invalid(flag, text, address.status().message());
  if (address->is_unix() && !may_be_unix) return Invalid(flag, text, "must be host:port");
  if (!address->is_loopback && !insecure) {
    return Invalid(flag, text,
                   "not a loopback address: anybody who reaches it could use this server, unseen "
                   "and unchecked (there is no TLS); --insecure_listen allows it");
  }
  return absl::OkStatus();
}

absl::Status CheckRanges(const ServerOptions& options) {
  const struct {
    absl::string_view flag;
    int64_t value;
    int64_t min;
    int64_t max;
  } ranges[] = {
      {"threads", options.threads, 0, kMaxThreads},
      {"io_threads", options.io_threads, 0, kMaxThreads},
      {"busy_poll_us", options.busy_poll_us, kOwnBusyPoll, kMaxMs * 1000},
      {"max_queue_requests", options.scheduler.max_queue_requests, 1, kMaxCount},
      {"max_queue_bytes", options.scheduler.max_queue_bytes, 0, kMaxBytes},
      {"max_batch_problems", options.scheduler.max_batch_problems, 1, kMaxCount},
      {"max_batch_bytes", options.scheduler.max_batch_bytes, 1, kMaxBytes},
      {"max_batch_delay_us", options.scheduler.max_batch_delay_us, 0, kMaxMs * 1000},
      {"max_slice_us", options.scheduler.max_slice_us, 0, kMaxMs * 1000},
      {"max_queue_ms", options.scheduler.max_queue_ms, 0, kMaxMs},
      {"max_unary_bytes", options.max_unary_bytes, 1, kMaxUnaryBytes},
      {"max_stream_bytes", options.max_stream_bytes, 0, kMaxBytes},
      {"receive_bytes", options.receive_bytes, 1, kMaxBytes},
      {"arena_bytes", options.arena_bytes, 0, kMaxBytes},
      {"pinned_bytes", options.pinned_bytes, 0, kMaxBytes},
      {"device_bytes", options.device_bytes, 0, kMaxBytes},
      {"max_region_bytes", options.max_region_bytes, 0, kMaxBytes},
      {"max_shm_names", options.max_shm_names, 1, kMaxShmNames},
      {"drain_delay_ms", options.drain_delay_ms, 0, kMaxMs},
      {"drain_timeout_ms", options.drain_timeout_ms, 0, kMaxMs},
      {"default_deadline_ms", options.default_deadline_ms, 0, kMaxMs},
  };
  for (const auto& range : ranges) {
    if (range.value < range.min || range.value > range.max) {
      return Invalid(range.flag, range.value,
                     absl::StrCat("must be ", range.min, " to ", range.max));
    }
  }
  return absl::OkStatus();
}

// Half is for payloads, in blocks that are up to an eighth larger.
int64_t LeastArenaBytes(int64_t max_unary_bytes) { return 3 * max_unary_bytes; }

// The machine's memory, or less where the process' control group has less.
int64_t UsableBytes() {
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream file(path);
    int64_t limit_bytes = 0;  // "max" is no number
    if (file >> limit_bytes) bytes = std::min(bytes, limit_bytes);
  }
  return bytes;
}

absl::Status CheckShmNames(const ServerOptions& options) {
  const std::string& prefix = options.shm_name_prefix;
  // A file's name has at most 255 bytes, and something is to follow.
  constexpr size_t kMaxPrefixBytes = 200;
  if (prefix.size() > kMaxPrefixBytes) {
    return Invalid("shm_name_prefix", prefix, absl::StrCat("is over ", kMaxPrefixBytes, " bytes"));
  }
  if (absl::StrContains(prefix, '/')) {
    return Invalid("shm_name_prefix", prefix, "must be without slashes, a leading one too");
  }
  if (options.allow_shm_names && options.max_region_bytes == 0) {
    return Invalid("allow_shm_names", "true", "nothing could be registered: --max_region_bytes=0");
  }
  return absl::OkStatus();
}

absl::Status CheckTenants(const ServerOptions& options) {
  const std::string& key = options.tenant_metadata;
  if (key.empty()) return absl::OkStatus();
  if (options.tenants.empty()) {
    return Invalid("tenant_metadata", key, "says who is of which tenant, and needs --tenants");
  }
  const bool is_key =
      key.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_.") == std::string::npos;
  if (!is_key || absl::StartsWith(key, "grpc-") || absl::EndsWith(key, "-bin")) {
    return Invalid("tenant_metadata", key,
                   "must be metadata's name: lower case, no grpc-, no -bin");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const ServerOptions& options) {
  if (absl::Status status =
          CheckAddress("listen", options.listen, options.insecure_listen, /*may_be_unix=*/true);
      !status.ok()) {
    return status;
  }
  if (!options.http_listen.empty()) {
    if (absl::Status status = CheckAddress("http_listen", options.http_listen,
                                           options.insecure_listen, /*may_be_unix=*/false);
        !status.ok()) {
      return status;
    }
  }
  if (absl::Status status = CheckRanges(options); !status.ok()) return status;
  if (absl::Status status = CheckTenants(options); !status.ok()) return status;
  if (absl::Status status = CheckShmNames(options); !status.ok()) return status;
  if (options.receive_bytes < options.max_unary_bytes) {
    return Invalid(
        "receive_bytes", options.receive_bytes,
        absl::StrCat("must hold one request of --max_unary_bytes=", options.max_unary_bytes));
  }
  const auto check_memory = [&](absl::string_view flag, int64_t bytes) {
    if (bytes == 0 || bytes >= LeastArenaBytes(options.max_unary_bytes)) return absl::OkStatus();
    return Invalid(
        flag, bytes,
        absl::StrCat("must be at least 3 times --max_unary_bytes=", options.max_unary_bytes));
  };
  if (absl::Status status = check_memory("arena_bytes", options.arena_bytes); !status.ok()) {
    return status;
  }
  return check_memory("pinned_bytes", options.pinned_bytes);
}

int DefaultIoThreads(int processors) { return std::clamp(processors, 4, 8); }

int64_t DefaultStreamBytes(bool has_gpu) { return int64_t{has_gpu ? 6 : 3} << 30; }

int64_t DefaultArenaBytes(int64_t usable_bytes, int64_t max_unary_bytes, bool has_gpu) {
  // Payload and answer, in blocks of up to an eighth more, and some small ones.
  const int64_t wanted_bytes = DefaultStreamBytes(has_gpu) / 4 * 9 + (1 << 20);
  return std::max(LeastArenaBytes(max_unary_bytes), std::min(wanted_bytes, usable_bytes / 2));
}

ServerOptions FillIn(ServerOptions options, bool has_gpu) {
  if (options.arena_bytes == 0) {
    options.arena_bytes = DefaultArenaBytes(UsableBytes(), options.max_unary_bytes, has_gpu);
  }
  const int processors = kernels::UsableProcessors();
  if (options.io_threads == 0) options.io_threads = DefaultIoThreads(processors);
  if (options.busy_poll_us == kOwnBusyPoll) {
    const bool has_processors = processors >= kLeastForBusyPoll;
    options.busy_poll_us = has_gpu && has_processors ? kGpuBusyPollUs : 0;
  }
  if (options.scheduler.max_queue_bytes == 0) {
    options.scheduler.max_queue_bytes = options.arena_bytes;
  }
  return options;
}

}  // namespace attnd::server
