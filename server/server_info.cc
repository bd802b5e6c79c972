#include "server/server_info.h"

namespace attnd::server {

wire::Limits WireLimits(const ServerOptions& options) {
  wire::Limits limits;
  limits.max_message_bytes = options.max_unary_bytes;
  return limits;
}

v1::GetServerInfoResponse ServerInfo(const ServerOptions& options, int64_t max_stream_bytes,
                                     const std::vector<DeviceDescription>& devices,
                                     const std::string& instance_id, bool takes_cuda_memory) {
  v1::GetServerInfoResponse info;
  info.set_instance_id(instance_id);
  info.set_version(ATTND_VERSION);
  info.set_takes_cuda_memory(takes_cuda_memory);
  info.set_backend(devices[0].backend);
  info.set_backend_reason(devices[0].backend_reason);
  for (const DeviceDescription& device : devices) {
    v1::DeviceInfo* const to = info.add_devices();
    to->set_id(device.id);
    to->set_name(device.name);
    to->set_processors(device.processors);
    for (const std::string& backend : device.backends) to->add_backends(backend);
  }
  v1::Limits* const limits = info.mutable_limits();
  limits->set_max_unary_bytes(options.max_unary_bytes);
  limits->set_max_queue_requests(options.scheduler.max_queue_requests);
  limits->set_max_queue_bytes(options.scheduler.max_queue_bytes);
  limits->set_max_batch_problems(options.scheduler.max_batch_problems);
  limits->set_max_head_dim(kernels::kMaxHeadDim);
  limits->set_max_header_bytes(WireLimits(options).max_header_bytes);
  limits->set_default_deadline_ms(options.default_deadline_ms);
  limits->set_receive_bytes(options.receive_bytes);
  limits->set_max_stream_bytes(max_stream_bytes);
  return info;
}

}  // namespace attnd::server
