// The one model, as the Open Inference Protocol describes one.
#ifndef ATTND_SERVER_SERVICES_KSERVE_MODEL_H_
#define ATTND_SERVER_SERVICES_KSERVE_MODEL_H_

#include "inference/grpc_service.pb.h"

namespace attnd::server {

inference::ModelMetadataResponse ModelMetadataOf();
inference::ModelConfig ModelConfigOf();

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_KSERVE_MODEL_H_
