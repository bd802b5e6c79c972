#include "server/services/attention_service.h"

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

class UnknownMethod final : public grpc::ServerGenericBidiReactor {
 public:
  explicit UnknownMethod(grpc::GenericCallbackServerContext& context) {
    const absl::optional<absl::string_view> why = WhyNoKserveMethod(context.method());
    const absl::Status status = absl::UnimplementedError(
        absl::StrCat("there is no method ", absl::CHexEscape(context.method()),
                     why.has_value() ? ": " : "", why.value_or("")));
    Finish(ToGrpcStatus(status, context));
    PassBaton(this);
  }
  void OnDone() override {
    PassBaton(this);
    delete this;
  }
};

}  // namespace

grpc::ServerUnaryReactor* AttentionService::GetServerInfo(grpc::CallbackServerContext* context,
                                                          const v1::GetServerInfoRequest*,
                                                          v1::GetServerInfoResponse* response) {
  PassBaton(this);  // to the destructor
  *response = info_;
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(absl::OkStatus(), *context));
  return reactor;
}

grpc::ServerGenericBidiReactor* RawService::CreateReactor(
    grpc::GenericCallbackServerContext* context) {
  if (context->method() == kComputeMethod) {
    parts_.metrics->CountCall("unary");
    return ComputeCall::Start(std::make_shared<V1UnaryCall>(parts_, context));
  }
  if (context->method() == kModelInferMethod) {
    parts_.metrics->CountCall("unary");
    return ComputeCall::Start(std::make_shared<KserveUnaryCall>(parts_, context));
  }
  if (context->method() == kStreamMethod) {
    parts_.metrics->CountCall("stream");
    return ComputeCall::Start(std::make_shared<StreamCall>(parts_, context));
  }
  if (context->method() == kModelStreamInferMethod) {
    return KserveStreamCall::Start(parts_, shares_, context);
  }
  parts_.metrics->CountReceived("unary", 0);
  parts_.metrics->CountFinished(absl::StatusCode::kUnimplemented, Stage::kReceive);
  return new UnknownMethod(*context);
}

}  // namespace attnd::server
