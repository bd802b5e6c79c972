// What attnd answers over gRPC, but for health and reflection, which are gRPC's own.
#ifndef ATTND_SERVER_SERVICES_ATTENTION_SERVICE_H_
#define ATTND_SERVER_SERVICES_ATTENTION_SERVICE_H_

#include <grpcpp/generic/async_generic_service.h>

#include "attnd/v1/attnd.grpc.pb.h"
#include "server/services/compute_parts.h"
#include "server/services/kserve_stream_call.h"

namespace attnd::server {

// Registers the API by its names, so that reflection and health know it, and serves GetServerInfo;
// Compute and ComputeStream are left to the RawService.
class AttentionService final : public v1::AttentionService::WithGenericMethod_Compute<
                                   v1::AttentionService::WithGenericMethod_ComputeStream<
                                       v1::AttentionService::WithCallbackMethod_GetServerInfo<
                                           v1::AttentionService::Service>>> {
 public:
  explicit AttentionService(v1::GetServerInfoResponse info) : info_(std::move(info)) {}

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const v1::GetServerInfoRequest* request,
                                          v1::GetServerInfoResponse* response) override;

 private:
  const v1::GetServerInfoResponse info_;
};

// Calls that are read raw: attnd.v1's Compute and ComputeStream, the Open Inference Protocol's
// inferences, and those of methods that do not exist.
class RawService final : public grpc::CallbackGenericService {
 public:
  explicit RawService(const ComputeParts& parts)
      : parts_(parts), shares_(parts.receive_budget->budget_bytes()) {}

  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;

 private:
  const ComputeParts parts_;
  StreamShares shares_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_ATTENTION_SERVICE_H_
