#include "server/services/attention_service.h"

#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/grpc_order.h"
#include "server/services/grpc_status.h"
#include "server/services/kserve_service.h"
#include "server/services/stream_call.h"
#include "server/services/unary_call.h"

namespace attnd::server {
namespace {

constexpr char kComputeMethod[] = "/attnd.v1.AttentionService/Compute";
constexpr char kStreamMethod[] = "/attnd.v1.AttentionService/ComputeStream";

class UnknownMethod final : public RawCall {
 public:
  explicit UnknownMethod(std::unique_ptr<RawStream> stream) : RawCall(std::move(stream)) {
    const absl::optional<absl::string_view> why = WhyNoKserveMethod(context().method());
    const absl::Status status = absl::UnimplementedError(
        absl::StrCat("there is no method ", absl::CHexEscape(context().method()),
                     why.has_value() ? ": " : "", why.value_or("")));
    Finish(ToGrpcStatus(status, context()));
    Begun();
  }

 private:
  void OnDone() override { delete this; }
};

}  // namespace

grpc::Status AttentionService::GetServerInfo(grpc::ServerContext* context,
                                             const v1::GetServerInfoRequest*,
                                             v1::GetServerInfoResponse* response) {
  PassBaton(this);  // to the destructor
  *response = info_;
  return ToGrpcStatus(absl::OkStatus(), *context);
}

void RawCalls::Begin(std::unique_ptr<RawStream> stream) {
  const std::string& method = stream->context().method();
  if (method == kComputeMethod) {
    parts_.metrics->CountCall("unary");
    return ComputeCall::Start(std::make_shared<V1UnaryCall>(parts_, std::move(stream)));
  }
  if (method == kModelInferMethod) {
    parts_.metrics->CountCall("unary");
    return ComputeCall::Start(std::make_shared<KserveUnaryCall>(parts_, std::move(stream)));
  }
  if (method == kStreamMethod) {
    parts_.metrics->CountCall("stream");
    return ComputeCall::Start(std::make_shared<StreamCall>(parts_, std::move(stream)));
  }
  if (method == kModelStreamInferMethod) {
    return KserveStreamCall::Start(parts_, shares_, std::move(stream));
  }
  if (method == kHealthCheckMethod) return StartHealthCheck(std::move(stream), *health_);
  if (method == kHealthWatchMethod) return StartHealthWatch(std::move(stream), *health_);
  parts_.metrics->CountReceived("unary", 0);
  parts_.metrics->CountFinished(absl::StatusCode::kUnimplemented, Stage::kReceive);
  new UnknownMethod(std::move(stream));
}

}  // namespace attnd::server
