#include "client/client.h"

#include <stdlib.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "attnd/v1/attnd.grpc.pb.h"
#include "client/call.h"
#include "client/channel.h"
#include "client/encode.h"
#include "client/health.h"
#include "client/local_regions.h"
#include "client/status.h"
#include "client/waited_call.h"
#include "client/ways.h"

namespace attnd {
namespace {

using client::ComputeCall;
using client::Core;
using client::EncodedRequest;
using client::ExpectedAnswer;
using client::LocalRegions;
using client::Reply;
using client::StagedCall;
using client::SwitchedCall;
using client::TimeLeft;
using client::WaitedCall;

ServerInfo FromProto(const v1::GetServerInfoResponse& from) {
  ServerInfo info;
  info.instance_id = from.instance_id();
  info.version = from.version();
  info.backend = from.backend();
  info.backend_reason = from.backend_reason();
  info.takes_cuda_memory = from.takes_cuda_memory();
  for (const v1::DeviceInfo& device : from.devices()) {
    info.devices.push_back({device.id(),
                            device.name(),
                            device.processors(),
                            {device.backends().begin(), device.backends().end()}});
  }
  const v1::Limits& limits = from.limits();
  info.max_unary_bytes = limits.max_unary_bytes();
  info.max_queue_requests = limits.max_queue_requests();
  info.max_queue_bytes = limits.max_queue_bytes();
  info.max_batch_problems = limits.max_batch_problems();
  info.max_head_dim = limits.max_head_dim();
  info.max_header_bytes = limits.max_header_bytes();
  info.default_deadline_ms = limits.default_deadline_ms();
  info.receive_bytes = limits.receive_bytes();
  info.max_stream_bytes = limits.max_stream_bytes();
  return info;
}

class ClientImpl : public Client {
 public:
  ClientImpl(const std::string& address, const ClientOptions& options)
      : core_(std::make_shared<Core>(address, options)),
        regions_(options, [this](absl::Duration timeout) -> absl::StatusOr<std::string> {
          const absl::StatusOr<ServerInfo> info = GetServerInfo(timeout);
          if (!info.ok()) return info.status();
          return info->instance_id;
        }) {}

  ~ClientImpl() override {
    {
      MutexLock lock(mutex_);
      while (running_ > 0) none_running_.Wait(mutex_);
    }
    core_->Close();
  }

  absl::StatusOr<AttentionResult> Attention(const AttentionRequest& request) override {
    return *WaitedCall(core_, regions_, request, Progress::kWhileWaited)
                .WaitFor(absl::InfiniteDuration());
  }

  std::unique_ptr<StartedCall> Start(AttentionRequest request, Progress progress) override {
    return std::make_unique<WaitedCall>(core_, regions_, std::move(request), progress);
  }

  std::shared_ptr<Call> AttentionAsync(const AttentionRequest& request,
                                       Callback callback) override {
    {
      MutexLock lock(mutex_);
      ++running_;
    }
    auto running = std::make_shared<Running>(request, std::move(callback));
    absl::StatusOr<Staged> staged = client::Stage(regions_, request, running->time);
    if (!staged.ok()) {
      End(running, staged.status());
      return running->call;
    }
    running->staged = *std::move(staged);
    StartCall(running);
    return running->call;
  }

  absl::StatusOr<ServerInfo> GetServerInfo(absl::Duration timeout) override {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    v1::GetServerInfoResponse response;
    const auto stub = v1::AttentionService::NewStub(core_->channels.control);
    const grpc::Status status = stub->GetServerInfo(&context, {}, &response);
    if (!status.ok()) return client::ToAbsl(status);
    return FromProto(response);
  }

  absl::Status CheckHealth(absl::Duration timeout) override {
    return client::CheckHealth(core_->channels.control, timeout);
  }

  absl::StatusOr<std::unique_ptr<LocalRegion>> NewRegion(int64_t size_bytes,
                                                         absl::Duration timeout) override {
    return regions_.New(size_bytes, timeout);
  }

  absl::StatusOr<std::unique_ptr<LocalRegion>> ShareCudaMemory(const CudaMemory& memory,
                                                               absl::Duration timeout) override {
    return regions_.Share(memory, timeout);
  }

 private:
  using Staged = std::unique_ptr<StagedCall>;

  // An asynchronous call.
  struct Running {
    Running(const AttentionRequest& r, Callback c)
        : request(r), callback(std::move(c)), time(r.timeout) {}
    const AttentionRequest request;
    const Callback callback;
    const TimeLeft time;
    const std::shared_ptr<SwitchedCall> call = std::make_shared<SwitchedCall>();
    Staged staged;  // null: its tensors go from where they lie
  };

  void StartCall(const std::shared_ptr<Running>& running) {
    const AttentionRequest& request =
        running->staged != nullptr ? running->staged->request() : running->request;
    absl::StatusOr<EncodedRequest> encoded = client::Encode(request);
    if (!encoded.ok()) return End(running, encoded.status());
    // On the loop, unless there is little to do and the sink is not called deep inside gRPC.
    auto sink = [this, core = core_, running, expected = ExpectedAnswer(request)](Reply reply) {
      if (running->staged == nullptr && client::IsShort(reply)) {
        return Ended(running, client::Decode(expected, reply));
      }
      auto held = std::make_shared<Reply>(std::move(reply));
      core->loop.Post([this, running, expected, held]() mutable {
        absl::StatusOr<AttentionResult> result = client::Decode(expected, *held);
        held.reset();  // the callback may take its time
        Ended(running, std::move(result));
      });
    };
    running->call->SwitchTo(ComputeCall::Start(core_, *std::move(encoded), ExpectedAnswer(request),
                                               running->time.left(), std::move(sink)));
  }

  // On the loop or on a thread of gRPC's.
  void Ended(const std::shared_ptr<Running>& running, absl::StatusOr<AttentionResult> result) {
    if (running->staged != nullptr) {
      running->staged->Finish(result);
      running->staged.reset();
      if (client::GoesAnotherWay(running->request, result.status())) return StartCall(running);
    }
    running->callback(std::move(result));
    OnEnded();
  }

  // Before there was a call.
  void End(const std::shared_ptr<Running>& running, const absl::Status& status) {
    core_->loop.Post([this, running, status] {
      running->callback(status);
      OnEnded();
    });
  }

  // Under the lock to the end: the destructor may be waiting to take everything away.
  void OnEnded() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    --running_;
    none_running_.NotifyAll();
  }

  const std::shared_ptr<Core> core_;
  LocalRegions regions_;
  Mutex mutex_;
  CondVar none_running_;
  int64_t running_ ABSL_GUARDED_BY(mutex_) = 0;  // asynchronous calls
};

bool MayBeMetadata(absl::string_view name, absl::string_view value) {
  const auto is_of_name = [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || absl::StrContains("-_.", c);
  };
  return !name.empty() && std::all_of(name.begin(), name.end(), is_of_name) &&
         !absl::StartsWith(name, "grpc-") && !absl::EndsWith(name, "-bin") &&
         name != "attnd-request-bytes" &&
         std::all_of(value.begin(), value.end(), absl::ascii_isprint);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& address,
                                                        const ClientOptions& options) {
  if (absl::Status status = client::CheckAddress(address); !status.ok()) return status;
  for (const auto& [name, value] : options.metadata) {
    if (MayBeMetadata(name, value)) continue;
    return absl::InvalidArgumentError(absl::StrCat("metadata \"", absl::CHexEscape(name),
                                                   "\" is not for callers, or has no printable "
                                                   "value"));
  }
  return std::unique_ptr<Client>(std::make_unique<ClientImpl>(address, options));
}

void UsePolling() { setenv("GRPC_POLL_STRATEGY", "poll", 0); }

}  // namespace attnd
