// The one model, as the Open Inference Protocol describes one.
#ifndef ATTND_SERVER_SERVICES_KSERVE_MODEL_H_
#define ATTND_SERVER_SERVICES_KSERVE_MODEL_H_

#include "inference/grpc_service.pb.h"
#include "server/metrics/inference_statistics.h"

namespace attnd::server {

inference::ModelMetadataResponse ModelMetadataOf();
inference::ModelConfig ModelConfigOf();
inference::ModelStatistics ModelStatisticsOf(const InferenceStatistics::Totals& totals);

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_KSERVE_MODEL_H_
