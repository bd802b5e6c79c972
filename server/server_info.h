// What a server says of itself, and what it holds requests to.
#ifndef ATTND_SERVER_SERVER_INFO_H_
#define ATTND_SERVER_SERVER_INFO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "attnd/v1/attnd.pb.h"
#include "server/executor/device.h"
#include "server/options.h"
#include "server/wire/wire.h"

namespace attnd::server {

// As far as the options say.
wire::Limits WireLimits(const ServerOptions& options);

// `options` are filled in (FillIn); there is a device.
v1::GetServerInfoResponse ServerInfo(const ServerOptions& options, int64_t max_stream_bytes,
                                     const std::vector<DeviceDescription>& devices,
                                     const std::string& instance_id, bool takes_cuda_memory);

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVER_INFO_H_
