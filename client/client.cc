#include "client/client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "attnd/v1/attnd.grpc.pb.h"
#include "client/call.h"
#include "client/channel.h"
#include "client/encode.h"
#include "client/health.h"
#include "client/status.h"

namespace attnd {
namespace {

using client::ComputeCall;
using client::Core;
using client::EncodedRequest;
using client::ExpectedAnswer;
using client::Reply;

absl::StatusOr<AttentionResult> Decode(const ExpectedAnswer& expected, Reply reply) {
  if (!reply.status.ok()) return reply.status;
  absl::StatusOr<AttentionResult> result =
      reply.streamed != nullptr ? reply.streamed->Finish()
                                : client::DecodeAnswer(expected, std::move(reply.message));
  if (result.ok()) {
    result->sent_bytes = reply.sent_bytes;
    result->tries = reply.tries;
  }
  return result;
}

// Where a synchronous call waits.
struct Waiter {
  Mutex mutex;
  CondVar done;
  absl::optional<Reply> reply ABSL_GUARDED_BY(mutex);

  void Set(Reply value) {
    MutexLock lock(mutex);
    reply = std::move(value);
    done.NotifyOne();
  }
  Reply Wait() {
    MutexLock lock(mutex);
    while (!reply) done.Wait(mutex);
    return std::move(*reply);
  }
};

// A call that failed before there was anything to cancel.
class FailedCall : public Call {
  void Cancel() override {}
};

ServerInfo FromProto(const v1::GetServerInfoResponse& from) {
  ServerInfo info;
  info.instance_id = from.instance_id();
  info.version = from.version();
  info.backend = from.backend();
  info.backend_reason = from.backend_reason();
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
      : core_(std::make_shared<Core>(address, options)) {}

  ~ClientImpl() override {
    {
      MutexLock lock(mutex_);
      while (running_ > 0) none_running_.Wait(mutex_);
    }
    core_->Close();
  }

  absl::StatusOr<AttentionResult> Attention(const AttentionRequest& request) override {
    absl::StatusOr<EncodedRequest> encoded = client::Encode(request);
    if (!encoded.ok()) return encoded.status();
    const auto waiter = std::make_shared<Waiter>();
    ComputeCall::Start(core_, *std::move(encoded), ExpectedAnswer(request), request.timeout,
                       [waiter](Reply reply) { waiter->Set(std::move(reply)); });
    return Decode(ExpectedAnswer(request), waiter->Wait());
  }

  std::shared_ptr<Call> AttentionAsync(const AttentionRequest& request,
                                       Callback callback) override {
    {
      MutexLock lock(mutex_);
      ++running_;
    }
    absl::StatusOr<EncodedRequest> encoded = client::Encode(request);
    if (!encoded.ok()) {
      core_->loop.Post([this, callback = std::move(callback), status = encoded.status()] {
        callback(status);
        OnEnded();
      });
      return std::make_shared<FailedCall>();
    }
    // On the loop, for the sink may be called deep inside gRPC.
    auto sink = [this, core = core_, callback = std::move(callback),
                 expected = ExpectedAnswer(request)](Reply reply) {
      const auto held = std::make_shared<Reply>(std::move(reply));
      core->loop.Post([this, callback, expected, held] {
        callback(Decode(expected, std::move(*held)));
        OnEnded();
      });
    };
    return ComputeCall::Start(core_, *std::move(encoded), ExpectedAnswer(request), request.timeout,
                              std::move(sink));
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

 private:
  // Under the lock to the end: the destructor may be waiting to take everything away.
  void OnEnded() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(mutex_);
    --running_;
    none_running_.NotifyAll();
  }

  const std::shared_ptr<Core> core_;
  Mutex mutex_;
  CondVar none_running_;
  int64_t running_ ABSL_GUARDED_BY(mutex_) = 0;  // asynchronous calls
};

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const std::string& address,
                                                        const ClientOptions& options) {
  if (absl::Status status = client::CheckAddress(address); !status.ok()) return status;
  return std::unique_ptr<Client>(std::make_unique<ClientImpl>(address, options));
}

}  // namespace attnd
