// The Open Inference Protocol on attnd's port: all but inferences, which are calls like attnd.v1's.
#ifndef ATTND_SERVER_SERVICES_KSERVE_SERVICE_H_
#define ATTND_SERVER_SERVICES_KSERVE_SERVICE_H_

#include <functional>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "inference/grpc_service.grpc.pb.h"
#include "server/metrics/metrics.h"
#include "server/regions/shm_host.h"
#include "server/services/call_facts.h"
#include "server/services/http_service.h"

namespace attnd::server {

inline constexpr char kModelInferMethod[] = "/inference.GRPCInferenceService/ModelInfer";
inline constexpr char kModelStreamInferMethod[] =
    "/inference.GRPCInferenceService/ModelStreamInfer";

// Why a method of that protocol is not here; absent: it is, or is none of its.
absl::optional<absl::string_view> WhyNoKserveMethod(absl::string_view method);

// Methods that RawCalls takes: inferences, and those that are not here.
using KserveInferences = inference::GRPCInferenceService;
using KserveMethods = KserveInferences::WithGenericMethod_ModelInfer<
    KserveInferences::WithGenericMethod_ModelStreamInfer<
        KserveInferences::WithGenericMethod_RepositoryModelLoad<
            KserveInferences::WithGenericMethod_RepositoryModelUnload<
                KserveInferences::WithGenericMethod_TraceSetting<
                    KserveInferences::WithGenericMethod_LogSettings<KserveInferences::Service>>>>>>;
// Registers that protocol by its names, so that reflection knows it.
class KserveService final : public KserveMethods {
 public:
  // `readiness` is callable, on any thread, while this lives. `metrics` and `shm` outlive it; shm
  // null: no memory is taken by name.
  KserveService(std::function<Readiness()> readiness, Metrics* metrics, ShmHost* shm,
                TenantSource tenants)
      : readiness_(std::move(readiness)),
        metrics_(metrics),
        shm_(shm),
        tenants_(std::move(tenants)) {}

  grpc::Status ServerLive(grpc::ServerContext* context, const inference::ServerLiveRequest* request,
                          inference::ServerLiveResponse* response) override;
  grpc::Status ServerReady(grpc::ServerContext* context,
                           const inference::ServerReadyRequest* request,
                           inference::ServerReadyResponse* response) override;
  grpc::Status ModelReady(grpc::ServerContext* context, const inference::ModelReadyRequest* request,
                          inference::ModelReadyResponse* response) override;
  grpc::Status ServerMetadata(grpc::ServerContext* context,
                              const inference::ServerMetadataRequest* request,
                              inference::ServerMetadataResponse* response) override;
  grpc::Status ModelMetadata(grpc::ServerContext* context,
                             const inference::ModelMetadataRequest* request,
                             inference::ModelMetadataResponse* response) override;
  grpc::Status ModelConfig(grpc::ServerContext* context,
                           const inference::ModelConfigRequest* request,
                           inference::ModelConfigResponse* response) override;
  grpc::Status ModelStatistics(grpc::ServerContext* context,
                               const inference::ModelStatisticsRequest* request,
                               inference::ModelStatisticsResponse* response) override;
  grpc::Status RepositoryIndex(grpc::ServerContext* context,
                               const inference::RepositoryIndexRequest* request,
                               inference::RepositoryIndexResponse* response) override;

  // Of shared memory: kserve_memory.cc.
  grpc::Status SystemSharedMemoryStatus(
      grpc::ServerContext* context, const inference::SystemSharedMemoryStatusRequest* request,
      inference::SystemSharedMemoryStatusResponse* response) override;
  grpc::Status SystemSharedMemoryRegister(
      grpc::ServerContext* context, const inference::SystemSharedMemoryRegisterRequest* request,
      inference::SystemSharedMemoryRegisterResponse* response) override;
  grpc::Status SystemSharedMemoryUnregister(
      grpc::ServerContext* context, const inference::SystemSharedMemoryUnregisterRequest* request,
      inference::SystemSharedMemoryUnregisterResponse* response) override;
  grpc::Status CudaSharedMemoryStatus(grpc::ServerContext* context,
                                      const inference::CudaSharedMemoryStatusRequest* request,
                                      inference::CudaSharedMemoryStatusResponse* response) override;
  grpc::Status CudaSharedMemoryRegister(
      grpc::ServerContext* context, const inference::CudaSharedMemoryRegisterRequest* request,
      inference::CudaSharedMemoryRegisterResponse* response) override;
  grpc::Status CudaSharedMemoryUnregister(
      grpc::ServerContext* context, const inference::CudaSharedMemoryUnregisterRequest* request,
      inference::CudaSharedMemoryUnregisterResponse* response) override;

 private:
  // The way to shared memory of a call's caller.
  ShmOfCall ShmOfContext(const grpc::ServerContext& context) const;
  // Ends the call: `status`, and what is in its response.
  grpc::Status End(grpc::ServerContext& context, const absl::Status& status);
  bool is_ready() const { return readiness_() == Readiness::kReady; }

  const std::function<Readiness()> readiness_;
  Metrics* const metrics_;
  ShmHost* const shm_;
  const TenantSource tenants_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_KSERVE_SERVICE_H_
