#include "server/services/kserve_service.h"

#include <string>

#include "absl/strings/strip.h"
#include "server/grpc_order.h"
#include "server/services/grpc_status.h"
#include "server/services/kserve_model.h"
#include "server/wire/kserve.h"

namespace attnd::server {
namespace {

constexpr struct {
  const char* method;
  const char* why;
} kNotHere[] = {
    {"RepositoryModelLoad", "the one model is part of the server, and always loaded"},
    {"RepositoryModelUnload", "the one model is part of the server, and stays loaded"},
    {"TraceSetting", "the server writes no traces; a call's traceparent is in its log"},
    {"LogSettings", "the log is set up by the server's flags"},
};

// Why the model takes no requests.
const char* ReasonOf(Readiness readiness) {
  switch (readiness) {
    case Readiness::kWarming:
      return "warming up";
    case Readiness::kReady:
      return "";
    case Readiness::kDraining:
      return "draining";
    case Readiness::kFaulty:
      return "a device was lost";
  }
  return "?";
}

}  // namespace

absl::optional<absl::string_view> WhyNoKserveMethod(absl::string_view method) {
  if (!absl::ConsumePrefix(&method, "/inference.GRPCInferenceService/")) return absl::nullopt;
  for (const auto& missing : kNotHere) {
    if (method == missing.method) return missing.why;
  }
  return absl::nullopt;
}

grpc::Status KserveService::End(grpc::ServerContext& context, const absl::Status& status) {
  PassBaton(this);  // to the destructor
  return ToGrpcStatus(status, context);
}

grpc::Status KserveService::ServerLive(grpc::ServerContext* context,
                                       const inference::ServerLiveRequest*,
                                       inference::ServerLiveResponse* response) {
  response->set_live(readiness_() != Readiness::kFaulty);
  return End(*context, absl::OkStatus());
}

grpc::Status KserveService::ServerReady(grpc::ServerContext* context,
                                        const inference::ServerReadyRequest*,
                                        inference::ServerReadyResponse* response) {
  response->set_ready(is_ready());
  return End(*context, absl::OkStatus());
}

grpc::Status KserveService::ModelReady(grpc::ServerContext* context,
                                       const inference::ModelReadyRequest* request,
                                       inference::ModelReadyResponse* response) {
  response->set_ready(is_ready());
  return End(*context, wire::CheckModel(request->name(), request->version()));
}

grpc::Status KserveService::ServerMetadata(grpc::ServerContext* context,
                                           const inference::ServerMetadataRequest*,
                                           inference::ServerMetadataResponse* response) {
  response->set_name("attnd");
  response->set_version(ATTND_VERSION);
  for (const char* extension :
       {"schedule_policy", "model_configuration", "parameters", "statistics"}) {
    response->add_extensions(extension);
  }
  if (shm_ != nullptr) response->add_extensions("system_shared_memory");
  return End(*context, absl::OkStatus());
}

grpc::Status KserveService::ModelMetadata(grpc::ServerContext* context,
                                          const inference::ModelMetadataRequest* request,
                                          inference::ModelMetadataResponse* response) {
  *response = ModelMetadataOf();
  return End(*context, wire::CheckModel(request->name(), request->version()));
}

grpc::Status KserveService::ModelConfig(grpc::ServerContext* context,
                                        const inference::ModelConfigRequest* request,
                                        inference::ModelConfigResponse* response) {
  *response->mutable_config() = ModelConfigOf();
  return End(*context, wire::CheckModel(request->name(), request->version()));
}

grpc::Status KserveService::ModelStatistics(grpc::ServerContext* context,
                                            const inference::ModelStatisticsRequest* request,
                                            inference::ModelStatisticsResponse* response) {
  *response->add_model_stats() = ModelStatisticsOf(metrics_->inferences().totals());
  const bool is_all = request->name().empty() && request->version().empty();
  return End(*context,
             is_all ? absl::OkStatus() : wire::CheckModel(request->name(), request->version()));
}

grpc::Status KserveService::RepositoryIndex(grpc::ServerContext* context,
                                            const inference::RepositoryIndexRequest* request,
                                            inference::RepositoryIndexResponse* response) {
  if (!request->repository_name().empty()) {
    return End(*context, absl::UnimplementedError("repository_name must be empty: the one model "
                                                  "is part of the server"));
  }
  const Readiness readiness = readiness_();
  if (readiness == Readiness::kReady || !request->ready()) {
    inference::RepositoryIndexResponse::ModelIndex& model = *response->add_models();
    model.set_name(wire::kModelName);
    model.set_version(wire::kModelVersion);
    model.set_state(readiness == Readiness::kReady ? "READY" : "UNAVAILABLE");
    model.set_reason(ReasonOf(readiness));
  }
  return End(*context, absl::OkStatus());
}

}  // namespace attnd::server
