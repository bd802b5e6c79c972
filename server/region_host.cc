#include "server/region_host.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/executor/cuda_ipc.h"
#include "server/log.h"
#include "server/regions/protocol/socket_path.h"

namespace attnd::server {

namespace {

using Devices = std::vector<std::unique_ptr<Device>>;

// Null where there is no GPU.
std::shared_ptr<PageLocker> Locker(const Devices& devices) {
  for (const auto& device : devices) {
    if (std::shared_ptr<PageLocker> locker = device->RegionLocker()) return locker;
  }
  return nullptr;
}

// Null: callers' memory on GPUs is not taken.
std::shared_ptr<GpuImporter> Importer(const ServerOptions& options, const Devices& devices) {
  if (!options.allow_cuda_ipc) return nullptr;
  std::vector<CudaImporter::Gpu> gpus;
  for (size_t i = 0; i < devices.size(); ++i) {
    std::shared_ptr<CudaIpc> ipc = devices[i]->Ipc();
    if (ipc == nullptr) continue;
    gpus.push_back({static_cast<int>(i), devices[i]->Describe().id, std::move(ipc)});
  }
  if (gpus.empty()) {
    LogEvent(LogLevel::kWarning, "no_cuda_ipc", {{"reason", "no device is a GPU that can"}});
    return nullptr;
  }
  return std::make_shared<CudaImporter>(std::move(gpus));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RegionHost>> RegionHost::Start(
    const ServerOptions& options, const std::string& instance_id, const Devices& devices,
    std::function<absl::Status(regions::UniqueFd)> take_calls) {
  std::unique_ptr<RegionHost> none;
  if (options.local_socket == kNoLocalSocket || options.max_region_bytes == 0) return none;
  std::shared_ptr<GpuImporter> importer = Importer(options, devices);
  const bool takes_cuda_memory = importer != nullptr;
  RegionLimits limits;
  // Only this process' own user is served, so that one limit is both.
  limits.max_owner_bytes = limits.max_total_bytes = options.max_region_bytes;
  auto table = std::make_shared<RegionTable>(limits, Locker(devices), std::move(importer));
  RegionSocketOptions socket_options;
  socket_options.path = options.local_socket;
  socket_options.instance_id = instance_id;
  socket_options.take_calls = std::move(take_calls);
  absl::StatusOr<std::unique_ptr<RegionSocket>> socket =
      RegionSocket::Listen(socket_options, table);
  if (socket.ok()) {
    LogEvent(LogLevel::kInfo, "local_socket", {{"path", (*socket)->path()}});
    return std::unique_ptr<RegionHost>(
        new RegionHost(std::move(table), *std::move(socket), takes_cuda_memory));
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

void RegionHost::AddMetrics(const LocalCalls& calls, Metrics& metrics) const {
  const auto add = [&](const char* name, const char* help, std::function<int64_t()> value) {
    metrics.AddGauge(name, help, [value] { return static_cast<double>(value()); });
  };
  add("attnd_region_connections", "Callers on this host that may hand in memory.",
      [this] { return socket_->connections(); });
  add("attnd_call_connections", "Callers on this host that may call without gRPC.",
      [&calls] { return calls.connections(); });
  add("attnd_regions", "Memory regions of callers that are mapped.",
      [this] { return table_->counts().regions; });
  add("attnd_region_bytes", "Memory of callers that is mapped.",
      [this] { return table_->counts().bytes; });
  add("attnd_region_leases", "Ranges of memory regions that calls use.",
      [this] { return table_->counts().leases; });
  add("attnd_cuda_regions", "Those of attnd_regions that are on GPUs.",
      [this] { return table_->counts().gpu_regions; });
  add("attnd_cuda_region_bytes", "Those of attnd_region_bytes that are on GPUs.",
      [this] { return table_->counts().gpu_bytes; });
  metrics.AddCounters("attnd_region_refusals_total",
                      "Connections, memory regions and ranges that were refused, by reason.",
                      "reason", [this, &calls] {
                        const RegionRefusals refusals = table_->refusals();
                        return Metrics::Counts{{"connection", socket_->refused_connections() +
                                                                  calls.refused_connections()},
                                               {"file", refusals.file},
                                               {"cuda", refusals.cuda},
                                               {"limit", refusals.limit},
                                               {"handle", refusals.handle},
                                               {"range", refusals.range},
                                               {"leases", refusals.leases},
                                               {"broken", refusals.broken}};
                      });
}

std::unique_ptr<ShmHost> NewShmHost(const ServerOptions& options) {
  if (!options.allow_shm_names) return nullptr;
  return std::make_unique<ShmHost>(
      ShmLimits{options.shm_name_prefix, options.max_shm_names, options.max_region_bytes});
}

void AddShmMetrics(const ShmHost* host, Metrics& metrics) {
  if (host == nullptr) return;
  metrics.AddGauge("attnd_shm_names", "Shared memory that is registered by name.",
                   [host] { return static_cast<double>(host->names.regions()); });
  metrics.AddGauge("attnd_shm_bytes", "Bytes of shared memory that is registered by name.",
                   [host] { return static_cast<double>(host->names.bytes()); });
}

}  // namespace attnd::server
