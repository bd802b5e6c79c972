#include "server/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/registry.h"
#include "server/executor/devices.h"
#include "server/executor/dispatcher.h"
#include "server/executor/executor.h"
#include "server/grpc_order.h"
#include "server/listen_address.h"
#include "server/log.h"
#include "server/memory/receive_budget.h"
#include "server/memory/slab_allocator.h"
#include "server/region_host.h"
#include "server/server_info.h"
#include "server/services/attention_service.h"
#include "server/services/health.h"
#include "server/services/kserve_service.h"
#include "server/services/local_calls.h"
#include "server/services/raw_server.h"
#include "server/transport.h"
#include "server/warm_up.h"

namespace attnd::server {
namespace {

// Callers that wait for receive memory; each holds a stream and its first window.
constexpr int64_t kMaxReceiveWaiting = 4096;
// Time for callers to read the last answers of a drain, for a closed connection may lose what is
// unread; and for gRPC to take leave of connections and watchers.
constexpr std::chrono::milliseconds kGoodbye(250);

int WorkerThreads() { return std::clamp(kernels::UsableProcessors() / 2, 2, 8); }

std::string RandomId() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

// What may be asked for, and what blocks of up to an eighth more than their size leave room for.
int64_t MaxStreamBytes(const ServerOptions& options, const BufferPool& payload_pool, bool has_gpu) {
  const int64_t asked_bytes =
      options.max_stream_bytes > 0 ? options.max_stream_bytes : DefaultStreamBytes(has_gpu);
  return std::min(asked_bytes, (payload_pool.budget_bytes() - 3 * kBlockAlignment) / 9 * 8);
}

// Pinned memory is made in pieces of this size: some 20 ms each, seldom.
constexpr int64_t kPinnedSlabBytes = int64_t{64} << 20;

// A pool for one of payloads and answers: pinned if a device has copies to make.
struct HostMemory {
  HostMemory(const ServerOptions& options, const Server::Devices& devices)
      : slabs(PinnedSlabs(options, devices)), pool(PoolBytes(options, slabs != nullptr), slabs) {}

  int64_t pinned_bytes() const { return slabs == nullptr ? 0 : slabs->held_bytes(); }

  static int64_t PoolBytes(const ServerOptions& options, bool is_pinned) {
    return (is_pinned && options.pinned_bytes > 0 ? options.pinned_bytes : options.arena_bytes) / 2;
  }
  static std::shared_ptr<SlabAllocator> PinnedSlabs(const ServerOptions& options,
                                                    const Server::Devices& devices) {
    for (const auto& device : devices) {
      if (std::shared_ptr<BlockAllocator> source = device->PinnedBlocks()) {
        return std::make_shared<SlabAllocator>(
            SlabOptions{PoolBytes(options, true), kPinnedSlabBytes}, std::move(source));
      }
    }
    return nullptr;
  }

  const std::shared_ptr<SlabAllocator> slabs;  // null: the system's memory
  BufferPool pool;
};

template <typename Parts, typename Value>
int64_t Sum(const Parts& parts, Value value) {
  int64_t sum = 0;
  for (const auto& part : parts) sum += value(*part);
  return sum;
}

}  // namespace

class Server::Impl {
 public:
  Impl(const ServerOptions& options, Devices devices, DeviceLost on_device_lost)
      : options_(options),
        on_device_lost_(std::move(on_device_lost)),
        instance_id_(RandomId()),
        receive_budget_(options.receive_bytes, kMaxReceiveWaiting),
        devices_(std::move(devices)),
        payload_memory_(options, devices_),
        answer_memory_(options, devices_),
        decoders_(
            std::make_unique<WorkerPool>(WorkerThreads(), options.scheduler.max_queue_requests)),
        senders_(
            std::make_unique<WorkerPool>(WorkerThreads(), std::numeric_limits<int64_t>::max())),
        copiers_(
            std::make_unique<WorkerPool>(WorkerThreads(), std::numeric_limits<int64_t>::max())),
        shm_(NewShmHost(options)) {
    for (const auto& device : devices_) {
      SchedulerOptions scheduler = options.scheduler;
      scheduler.rates =
          device->PinnedBlocks() != nullptr ? GpuRates() : CpuRates(device->Describe().processors);
      schedulers_.push_back(std::make_unique<Scheduler>(scheduler, &clock_, &metrics_));
    }
  }

  ~Impl() {
    Shutdown();
    http_.reset();
    metrics_.RemoveGauges();
    regions_.reset();  // of it, calls hold leases alone
    local_calls_.Stop();
    // Nobody calls any more; what the threads still hold ends here, upstream first.
    decoders_.reset();
    copiers_.reset();
    for (const auto& scheduler : schedulers_) {
      scheduler->Stop(absl::UnavailableError("the server has stopped"));
    }
    executors_.clear();
    senders_.reset();
    if (raw_server_ != nullptr) raw_server_->Stop();
    grpc_.reset();
    deadlines_.reset();
  }

  absl::Status Start() {
    AddGauges();
    if (absl::Status status = ReadTenants(); !status.ok()) return status;
    if (absl::Status status = StartHttp(); !status.ok()) return status;
    if (absl::Status status = PrepareDevices(); !status.ok()) return status;
    if (absl::Status status = StartRegions(); !status.ok()) return status;
    return StartGrpc();
  }

  void ReloadTenants() {
    const absl::Status status = ReadTenants();
    if (!status.ok()) LogEvent(LogLevel::kError, "tenants_kept", {{"message", status.message()}});
  }

  bool Drain() {
    if (Leave(Readiness::kDraining)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(options_.drain_delay_ms));
    }
    gate_.Shut();
    LogEvent(LogLevel::kInfo, "draining", {{"calls", gate_.inside()}});
    const bool clean =
        gate_.WaitUntilEmpty(clock_.Now() + std::chrono::milliseconds(options_.drain_timeout_ms));
    LogEvent(clean ? LogLevel::kInfo : LogLevel::kError, clean ? "drained" : "drain_timed_out",
             {{"calls", gate_.inside()}});
    if (regions_ != nullptr) regions_->RemovePath();
    if (clean) std::this_thread::sleep_for(kGoodbye);
    return clean;
  }

  void Shutdown() {
    Leave(Readiness::kDraining);
    gate_.Shut();
    for (const auto& scheduler : schedulers_) scheduler->Drain();
    if (grpc_ == nullptr) return;
    grpc_->Shutdown(std::chrono::system_clock::now() + kGoodbye);
    PassBaton(attention_.get());
    PassBaton(kserve_.get());
  }

  int port() const { return port_; }
  int http_port() const { return http_ == nullptr ? 0 : http_->port(); }
  std::vector<DeviceDescription> devices() const {
    std::vector<DeviceDescription> all;
    for (const auto& device : devices_) all.push_back(device->Describe());
    return all;
  }
  Metrics& metrics() { return metrics_; }
  Readiness readiness() const {
    MutexLock lock(serving_mutex_);
    return readiness_;
  }

 private:
  absl::Status ReadTenants() {
    if (options_.tenants.empty()) return absl::OkStatus();
    const auto tenants = server::ReadTenants(options_.tenants);
    if (!tenants.ok()) return tenants.status();
    for (const auto& scheduler : schedulers_) scheduler->SetTenants(*tenants);
    LogEvent(LogLevel::kInfo, "tenants",
             {{"file", options_.tenants}, {"tenants", tenants->size()}});
    return absl::OkStatus();
  }

  // Of all devices, by tenant, in seconds.
  Metrics::Counts HandedOut() {
    std::map<std::string, double> seconds;
    for (const auto& scheduler : schedulers_) {
      for (const TenantFacts& tenant : scheduler->tenants()) {
        seconds[tenant.name] += std::chrono::duration<double>(tenant.handed_out).count();
      }
    }
    return {seconds.begin(), seconds.end()};
  }

  void AddGauges() {
    const auto add = [&](const char* name, const char* help, std::function<int64_t()> value) {
      metrics_.AddGauge(name, help, [value] { return static_cast<double>(value()); });
    };
    add("attnd_queue_requests", "Requests that wait for an executor.",
        [this] { return Sum(schedulers_, [](auto& s) { return s.queued_requests(); }); });
    add("attnd_queue_bytes", "Payload and answer bytes of requests that wait for an executor.",
        [this] { return Sum(schedulers_, [](auto& s) { return s.queued_bytes(); }); });
    metrics_.AddGauge("attnd_queue_seconds",
                      "Predicted device time of requests that wait for an executor.", [this] {
                        return 1e-6 * static_cast<double>(Sum(schedulers_, [](auto& s) {
                                 return ToMicroseconds(s.queued_time());
                               }));
                      });
    add("attnd_receive_budget_bytes", "Bytes that calls may hold while they are received.",
        [this] { return receive_budget_.budget_bytes(); });
    add("attnd_receive_used_bytes", "Bytes that calls hold while they are received.",
        [this] { return receive_budget_.used_bytes(); });
    add("attnd_receive_waiting_requests", "Calls that wait for receive memory.",
        [this] { return receive_budget_.waiting(); });
    add("attnd_pool_used_bytes", "Memory of payloads and answers.",
        [this] { return payload_memory_.pool.used_bytes() + answer_memory_.pool.used_bytes(); });
    add("attnd_pool_kept_bytes", "Memory kept for payloads and answers to come.",
        [this] { return payload_memory_.pool.kept_bytes() + answer_memory_.pool.kept_bytes(); });
    add("attnd_pinned_held_bytes", "Pinned memory for payloads and answers, used or kept.",
        [this] { return payload_memory_.pinned_bytes() + answer_memory_.pinned_bytes(); });
    add("attnd_device_used_bytes", "Memory of GPUs that requests have.",
        [this] { return Sum(devices_, [](auto& d) { return d.memory().used_bytes; }); });
    add("attnd_device_held_bytes", "Memory of GPUs for requests, used or kept.",
        [this] { return Sum(devices_, [](auto& d) { return d.memory().held_bytes; }); });
    metrics_.AddCounters("attnd_tenant_device_seconds_total",
                         "Predicted device time of what was handed out to devices, by tenant.",
                         "tenant", [this] { return HandedOut(); });
    add("attnd_serving", "1 if the server says that it is ready.",
        [this] { return int64_t{readiness() == Readiness::kReady}; });
  }

  absl::Status StartHttp() {
    if (options_.http_listen.empty()) return absl::OkStatus();
    const absl::StatusOr<ListenAddress> address = ParseListenAddress(options_.http_listen);
    if (!address.ok()) return address.status();
    auto http =
        HttpService::Start(address->host, address->port, &metrics_, [this] { return readiness(); });
    if (!http.ok()) return http.status();
    http_ = *std::move(http);
    return absl::OkStatus();
  }

  // Warms every device up and puts a queue and an executor to it.
  absl::Status PrepareDevices() {
    metrics_.SetBuildInfo(ATTND_VERSION, devices_[0]->Describe().backend);
    std::vector<Lane> lanes;
    for (size_t i = 0; i < devices_.size(); ++i) {
      Device& device = *devices_[i];
      if (absl::Status status = WarmUp(device); !status.ok()) {
        return absl::Status(status.code(),
                            absl::StrCat("device ", device.Describe().id, ": ", status.message()));
      }
      LogDevice(device.Describe());
      Scheduler& scheduler = *schedulers_[i];
      ExecutorOptions executor;
      executor.on_device_lost = [this, &device](const absl::Status& status) {
        LoseDevice(device, status);
      };
      executor.busy_poll = std::chrono::microseconds(options_.busy_poll_us);
      executors_.push_back(std::make_unique<Executor>(executor, &scheduler, &device,
                                                      &answer_memory_.pool, &clock_, &metrics_));
      lanes.push_back({&device, &scheduler, executors_.back().get()});
    }
    dispatcher_ = std::make_unique<Dispatcher>(std::move(lanes), &clock_);
    // Makes the first pinned slabs, so that the first call does not wait for them.
    for (HostMemory* memory : {&payload_memory_, &answer_memory_}) {
      if (absl::Status status = memory->pool.Allocate(1).status(); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status StartRegions() {
    auto regions = RegionHost::Start(options_, instance_id_, devices_,
                                     [this](auto socket) { return TakeCalls(std::move(socket)); });
    if (!regions.ok()) return regions.status();
    regions_ = *std::move(regions);
    AddShmMetrics(shm_.get(), metrics_);
    if (regions_ != nullptr) regions_->AddMetrics(local_calls_, metrics_);
    return absl::OkStatus();
  }

  absl::Status TakeCalls(regions::UniqueFd socket) {
    // The side socket knows users, and no tenants.
    if (Tenants().has_tenants) {
      return absl::FailedPreconditionError("this server has tenants: calls come by gRPC");
    }
    return local_calls_.Take(std::move(socket));
  }

  static void LogDevice(const DeviceDescription& device) {
    LogEvent(LogLevel::kInfo, "device",
             {{"device", device.id},
              {"name", device.name},
              {"backend", device.backend},
              {"reason", device.backend_reason}});
  }

  absl::Status StartGrpc() {
    const absl::StatusOr<ListenAddress> address = ParseListenAddress(options_.listen);
    if (!address.ok()) return address.status();
    if (address->is_unix()) {
      if (absl::Status status = PrepareUnixPath(address->unix_path); !status.ok()) return status;
    }
    // Global to gRPC, and applies to servers built from here on.
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();

    attention_ = std::make_unique<AttentionService>(
        ServerInfo(options_, max_stream_bytes(), devices(), instance_id_,
                   regions_ != nullptr && regions_->takes_cuda_memory()));
    kserve_ = std::make_unique<KserveService>([this] { return readiness(); }, &metrics_, shm_.get(),
                                              Tenants());
    raw_calls_ = std::make_unique<RawCalls>(Parts(), &health_);
    raw_server_ = std::make_unique<RawServer>(
        RawServerOptions{options_.io_threads, std::chrono::microseconds(options_.busy_poll_us)},
        [this](std::unique_ptr<RawStream> stream) { raw_calls_->Begin(std::move(stream)); });
    grpc::ServerBuilder builder;
    ConfigureTransport(builder, options_);
    int port = 0;
    builder.AddListeningPort(address->ToString(), grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(attention_.get());
    builder.RegisterService(kserve_.get());
    builder.RegisterService(&health_service_);
    raw_server_->AddTo(builder);
    grpc_ = builder.BuildAndStart();
    if (grpc_ == nullptr) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", address->ToString(),
                                                 ": it is in use, or no address of this machine"));
    }
    raw_server_->Start();
    if (regions_ != nullptr) {
      if (absl::Status status = local_calls_.Start(Parts()); !status.ok()) return status;
    }
    port_ = address->is_unix() ? 0 : port;
    if (shm_ != nullptr) shm_->callers.SetServerPort(port_);
    SayServing();
    return absl::OkStatus();
  }

  int64_t max_stream_bytes() const {
    return MaxStreamBytes(options_, payload_memory_.pool, payload_memory_.slabs != nullptr);
  }

  TenantSource Tenants() const { return {!options_.tenants.empty(), options_.tenant_metadata}; }

  ComputeParts Parts() {
    ComputeParts parts;
    parts.clock = &clock_;
    parts.metrics = &metrics_;
    parts.gate = &gate_;
    parts.deadlines = deadlines_.get();
    parts.receive_budget = &receive_budget_;
    parts.payload_pool = &payload_memory_.pool;
    parts.answer_pool = &answer_memory_.pool;
    parts.dispatcher = dispatcher_.get();
    parts.decoders = decoders_.get();
    parts.senders = senders_.get();
    parts.copiers = copiers_.get();
    parts.limits = WireLimits(options_);
    parts.tenants = Tenants();
    parts.shm = shm_.get();
    parts.limits.takes_regions = regions_ != nullptr;
    parts.limits.region_gaps = payload_memory_.slabs == nullptr;
    parts.regions = regions_ == nullptr ? nullptr : &regions_->table();
    parts.max_stream_bytes = max_stream_bytes();
    parts.default_deadline_ms = options_.default_deadline_ms;
    return parts;
  }

  // Serves from now on, unless the device was lost with the very first call.
  void SayServing() {
    MutexLock lock(serving_mutex_);
    if (readiness_ == Readiness::kWarming) readiness_ = Readiness::kReady;
    SayHealth();
  }

  // Serves no more from now on. A fault stays a fault. False if it is one.
  bool Leave(Readiness why) {
    MutexLock lock(serving_mutex_);
    if (readiness_ != Readiness::kFaulty) readiness_ = why;
    SayHealth();
    return readiness_ != Readiness::kFaulty;
  }

  void SayHealth() ABSL_EXCLUSIVE_LOCKS_REQUIRED(serving_mutex_) {
    for (const char* service : {"", v1::AttentionService::service_full_name(),
                                inference::GRPCInferenceService::service_full_name()}) {
      health_.Say(service, readiness_ == Readiness::kReady);
    }
  }

  void LoseDevice(const Device& device, const absl::Status& status) {
    Leave(Readiness::kFaulty);
    LogEvent(LogLevel::kError, "device_lost",
             {{"device", device.Describe().id}, {"message", status.message()}});
    if (on_device_lost_ && !device_lost_.exchange(true)) on_device_lost_(status);
  }

  const ServerOptions options_;
  const DeviceLost on_device_lost_;
  const std::string instance_id_;
  // In the order of use: each is used by those below it.
  SteadyClock clock_;
  Metrics metrics_;
  CallGate gate_;
  std::unique_ptr<DeadlineWatch> deadlines_ = std::make_unique<DeadlineWatch>(&clock_);
  ReceiveBudget receive_budget_;
  const Devices devices_;
  HostMemory payload_memory_;
  HostMemory answer_memory_;
  // One of each for each device.
  std::vector<std::unique_ptr<Scheduler>> schedulers_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::unique_ptr<WorkerPool> decoders_;
  std::unique_ptr<WorkerPool> senders_;
  std::unique_ptr<WorkerPool> copiers_;
  LocalCalls local_calls_{{.busy_poll = std::chrono::microseconds(options_.busy_poll_us)}};
  std::unique_ptr<RegionHost> regions_;  // null: none
  const std::unique_ptr<ShmHost> shm_;   // null: none
  std::unique_ptr<AttentionService> attention_;
  std::unique_ptr<KserveService> kserve_;
  HealthBoard health_;
  HealthService health_service_{&health_};
  std::unique_ptr<RawCalls> raw_calls_;
  std::unique_ptr<HttpService> http_;
  std::unique_ptr<RawServer> raw_server_;
  std::unique_ptr<grpc::Server> grpc_;
  int port_ = 0;
  std::atomic<bool> device_lost_{false};

  mutable Mutex serving_mutex_;
  Readiness readiness_ ABSL_GUARDED_BY(serving_mutex_) = Readiness::kWarming;
};

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, Devices devices,
                                                      DeviceLost on_device_lost) {
  if (absl::Status status = Validate(options); !status.ok()) return status;
  if (devices.empty()) {
    absl::StatusOr<Devices> created =
        CreateDevices({options.devices, options.backend, options.threads, options.device_bytes});
    if (!created.ok()) return created.status();
    devices = *std::move(created);
  }
  const bool has_gpu = std::any_of(devices.begin(), devices.end(), [](const auto& device) {
    return device->PinnedBlocks() != nullptr;
  });
  auto impl = std::make_unique<Impl>(FillIn(options, has_gpu), std::move(devices),
                                     std::move(on_device_lost));
  if (absl::Status status = impl->Start(); !status.ok()) return status;
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

int Server::port() const { return impl_->port(); }
int Server::http_port() const { return impl_->http_port(); }
std::vector<DeviceDescription> Server::devices() const { return impl_->devices(); }
Metrics& Server::metrics() { return impl_->metrics(); }
Readiness Server::readiness() const { return impl_->readiness(); }
bool Server::Drain() { return impl_->Drain(); }
void Server::Shutdown() { impl_->Shutdown(); }
void Server::ReloadTenants() { impl_->ReloadTenants(); }

}  // namespace attnd::server
