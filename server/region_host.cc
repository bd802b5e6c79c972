#include "server/region_host.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/log.h"
#include "server/regions/protocol/socket_path.h"

namespace attnd::server {

absl::StatusOr<std::unique_ptr<RegionHost>> RegionHost::Start(const ServerOptions& options,
                                                              const std::string& instance_id,
                                                              std::shared_ptr<PageLocker> locker) {
  std::unique_ptr<RegionHost> none;
  if (options.local_socket == kNoLocalSocket || options.max_region_bytes == 0) return none;
  RegionLimits limits;
  // Only this process' own user is served, so that one limit is both.
  limits.max_owner_bytes = limits.max_total_bytes = options.max_region_bytes;
  auto table = std::make_shared<RegionTable>(limits, std::move(locker));
  RegionSocketOptions socket_options;
  socket_options.path = options.local_socket;
  socket_options.instance_id = instance_id;
  absl::StatusOr<std::unique_ptr<RegionSocket>> socket =
      RegionSocket::Listen(socket_options, table);
  if (socket.ok()) {
    LogEvent(LogLevel::kInfo, "local_socket", {{"path", (*socket)->path()}});
    return std::unique_ptr<RegionHost>(new RegionHost(std::move(table), *std::move(socket)));
  }
  if (!options.local_socket.empty()) {
    return absl::Status(
        socket.status().code(),
        absl::StrCat("--local_socket=", options.local_socket, ": ", socket.status().message()));
  }
  LogEvent(LogLevel::kWarning, "no_local_socket",
           {{"path", regions::DefaultSocketPath()}, {"reason", socket.status().message()}});
  return none;
}

void RegionHost::AddMetrics(Metrics& metrics) const {
  const auto add = [&](const char* name, const char* help, std::function<int64_t()> value) {
    metrics.AddGauge(name, help, [value] { return static_cast<double>(value()); });
  };
  add("attnd_region_connections", "Callers on this host that may hand in memory.",
      [this] { return socket_->connections(); });
  add("attnd_regions", "Memory regions of callers that are mapped.",
      [this] { return table_->counts().regions; });
  add("attnd_region_bytes", "Memory of callers that is mapped.",
      [this] { return table_->counts().bytes; });
  add("attnd_region_leases", "Ranges of memory regions that calls use.",
      [this] { return table_->counts().leases; });
  metrics.AddCounters("attnd_region_refusals_total",
                      "Connections, memory regions and ranges that were refused, by reason.",
                      "reason", [this] {
                        const RegionRefusals refusals = table_->refusals();
                        return Metrics::Counts{{"connection", socket_->refused_connections()},
                                               {"file", refusals.file},
                                               {"limit", refusals.limit},
                                               {"handle", refusals.handle},
                                               {"range", refusals.range},
                                               {"leases", refusals.leases},
                                               {"broken", refusals.broken}};
                      });
}

}  // namespace attnd::server
