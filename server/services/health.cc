#include "server/services/health.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/impl/codegen/method_handler.h>
#include <grpcpp/impl/codegen/rpc_service_method.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "server/services/grpc_status.h"

namespace attnd::server {
namespace {

using ::google::protobuf::internal::WireFormatLite;
using Status = HealthBoard::Status;

// Of a service.
constexpr int kMaxNameBytes = 4096;

// message HealthCheckRequest { string service = 1; }
absl::optional<std::string> ReadService(grpc::ByteBuffer& message) {
  std::string service;
  grpc::ProtoBufferReader reader(&message);
  google::protobuf::io::CodedInputStream in(&reader);
  while (const uint32_t tag = in.ReadTag()) {
    if (tag != WireFormatLite::MakeTag(1, WireFormatLite::WIRETYPE_LENGTH_DELIMITED)) {
      if (!WireFormatLite::SkipField(&in, tag)) return absl::nullopt;
      continue;
    }
    uint32_t bytes = 0;
    if (!in.ReadVarint32(&bytes) || bytes > kMaxNameBytes ||
        !in.ReadString(&service, static_cast<int>(bytes))) {
      return absl::nullopt;
    }
  }
  if (!in.ConsumedEntireMessage()) return absl::nullopt;
  return service;
}

// message HealthCheckResponse { ServingStatus status = 1; }
std::string BytesOf(Status status) { return {0x08, static_cast<char>(status)}; }

grpc::ByteBuffer ToMessage(Status status) {
  const grpc::Slice slice(BytesOf(status));
  return grpc::ByteBuffer(&slice, 1);
}

std::string Field(int number, absl::string_view bytes) {
  std::string field;
  google::protobuf::io::StringOutputStream stream(&field);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.WriteTag(WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
  out.WriteVarint32(static_cast<uint32_t>(bytes.size()));
  out.WriteRaw(bytes.data(), static_cast<int>(bytes.size()));
  out.Trim();
  return field;
}

// message HealthListResponse { map<string, HealthCheckResponse> statuses = 1; }
grpc::ByteBuffer ToMessage(const std::map<std::string, bool>& statuses) {
  std::string message;
  for (const auto& [service, is_serving] : statuses) {
    const std::string status = BytesOf(is_serving ? Status::kServing : Status::kNotServing);
    absl::StrAppend(&message, Field(1, absl::StrCat(Field(1, service), Field(2, status))));
  }
  const grpc::Slice slice(message);
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status NoRequest() {
  return absl::InvalidArgumentError("the call carries no HealthCheckRequest");
}

class HealthCheck final : public RawCall {
 public:
  HealthCheck(std::unique_ptr<RawStream> stream, const HealthBoard& board)
      : RawCall(std::move(stream)), board_(board) {
    StartRead(&message_);
    Begun();
  }

 private:
  void OnReadDone(bool ok) override {
    const absl::optional<std::string> service = ok ? ReadService(message_) : absl::nullopt;
    if (!service) return Finish(ToGrpcStatus(NoRequest(), context()));
    const Status status = board_.Of(*service);
    if (status == Status::kServiceUnknown) {
      return Finish(ToGrpcStatus(
          absl::NotFoundError(absl::StrCat("there is no service ", absl::CHexEscape(*service))),
          context()));
    }
    StartWriteAndFinish(ToMessage(status), ToGrpcStatus(absl::OkStatus(), context()));
  }
  void OnDone() override { delete this; }

  const HealthBoard& board_;
  grpc::ByteBuffer message_;
};

// Written is what is so, not each change: who reads slowly misses what has passed.
class HealthWatch final : public RawCall {
 public:
  HealthWatch(std::unique_ptr<RawStream> stream, HealthBoard& board)
      : RawCall(std::move(stream)), board_(board) {
    StartRead(&message_);
    Begun();
  }

 private:
  void OnReadDone(bool ok) override {
    if (IsCancelled()) return;  // OnCancel has come, or comes
    const absl::optional<std::string> service = ok ? ReadService(message_) : absl::nullopt;
    if (!service) return End(NoRequest());
    board_.Watch(this, *service, [this](Status status) { Tell(status); });
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return End(absl::CancelledError("the caller is gone"));
    MutexLock lock(mutex_);
    writing_ = false;
    WriteNext();
  }

  void OnCancel() override { End(absl::CancelledError("the caller is gone")); }

  void OnDone() override { delete this; }

  void Tell(Status status) {
    MutexLock lock(mutex_);
    next_ = status;
    WriteNext();
  }

  // Under the lock, so that nothing is asked for after the end.
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!next_ || writing_ || ended_) return;
    writing_ = true;
    StartWrite(ToMessage(*std::exchange(next_, absl::nullopt)));
  }

  // In reactions alone.
  void End(const absl::Status& status) {
    board_.Unwatch(this);
    MutexLock lock(mutex_);
    if (std::exchange(ended_, true)) return;
    Finish(ToGrpcStatus(status, context()));
  }

  HealthBoard& board_;
  grpc::ByteBuffer message_;
  Mutex mutex_;
  absl::optional<Status> next_ ABSL_GUARDED_BY(mutex_);  // to be written
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

HealthService::HealthService(const HealthBoard* board) {
  using grpc::internal::RpcMethod;
  using grpc::internal::RpcServiceMethod;
  using List = grpc::internal::RpcMethodHandler<HealthService, grpc::ByteBuffer, grpc::ByteBuffer>;
  AddMethod(new RpcServiceMethod(kHealthListMethod, RpcMethod::NORMAL_RPC,
                                 new List(
                                     [board](HealthService*, grpc::ServerContext* context,
                                             const grpc::ByteBuffer*, grpc::ByteBuffer* answer) {
                                       *answer = ToMessage(board->All());
                                       return ToGrpcStatus(absl::OkStatus(), *context);
                                     },
                                     this)));
}

void HealthBoard::Say(const std::string& service, bool is_serving) {
  MutexLock lock(mutex_);
  const Status before = Known(service);
  is_serving_[service] = is_serving;
  const Status now = Known(service);
  if (now == before) return;
  for (const auto& [who, entry] : watchers_) {
    if (entry.service == service) entry.watcher(now);
  }
}

HealthBoard::Status HealthBoard::Of(const std::string& service) const {
  MutexLock lock(mutex_);
  return Known(service);
}

std::map<std::string, bool> HealthBoard::All() const {
  MutexLock lock(mutex_);
  return is_serving_;
}

HealthBoard::Status HealthBoard::Known(const std::string& service) const {
  const auto found = is_serving_.find(service);
  if (found == is_serving_.end()) return Status::kServiceUnknown;
  return found->second ? Status::kServing : Status::kNotServing;
}

void HealthBoard::Watch(const void* who, const std::string& service, Watcher watcher) {
  MutexLock lock(mutex_);
  watcher(Known(service));
  watchers_[who] = {service, std::move(watcher)};
}

void HealthBoard::Unwatch(const void* who) {
  MutexLock lock(mutex_);
  watchers_.erase(who);
}

void StartHealthCheck(std::unique_ptr<RawStream> stream, const HealthBoard& board) {
  new HealthCheck(std::move(stream), board);
}

void StartHealthWatch(std::unique_ptr<RawStream> stream, HealthBoard& board) {
  new HealthWatch(std::move(stream), board);
}

}  // namespace attnd::server
