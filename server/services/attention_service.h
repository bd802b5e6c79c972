// What attnd answers over gRPC, but for reflection, which is gRPC's own.
#ifndef ATTND_SERVER_SERVICES_ATTENTION_SERVICE_H_
#define ATTND_SERVER_SERVICES_ATTENTION_SERVICE_H_

#include <memory>

#include "attnd/v1/attnd.grpc.pb.h"
#include "server/services/compute_parts.h"
#include "server/services/health.h"
#include "server/services/kserve_stream_call.h"
#include "server/services/raw_call.h"

namespace attnd::server {

// Registers the API by its names, so that reflection and health know it, and serves GetServerInfo;
// Compute and ComputeStream are left to RawCalls.
class AttentionService final
    : public v1::AttentionService::WithGenericMethod_Compute<
          v1::AttentionService::WithGenericMethod_ComputeStream<v1::AttentionService::Service>> {
 public:
  explicit AttentionService(v1::GetServerInfoResponse info) : info_(std::move(info)) {}

  grpc::Status GetServerInfo(grpc::ServerContext* context, const v1::GetServerInfoRequest* request,
                             v1::GetServerInfoResponse* response) override;

 private:
  const v1::GetServerInfoResponse info_;
};

// Begins raw calls: attnd.v1's Compute and ComputeStream, the Open Inference Protocol's inferences,
// health's, and those of methods that do not exist. Thread-safe; outlives its calls.
class RawCalls {
 public:
  RawCalls(const ComputeParts& parts, HealthBoard* health)
      : parts_(parts), health_(health), shares_(parts.receive_budget->budget_bytes()) {}

  void Begin(std::unique_ptr<RawStream> stream);

 private:
  const ComputeParts parts_;
  HealthBoard* const health_;
  StreamShares shares_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_ATTENTION_SERVICE_H_
