// grpc.health.v1, whose messages no package of the distribution brings: two fields, by hand.
#ifndef ATTND_CLIENT_HEALTH_H_
#define ATTND_CLIENT_HEALTH_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"

namespace attnd::client {

// OK if the whole server reports SERVING, UNAVAILABLE naming what it reports otherwise, or the
// call's own error.
absl::Status CheckHealth(std::shared_ptr<grpc::Channel> channel, absl::Duration timeout);

}  // namespace attnd::client

#endif  // ATTND_CLIENT_HEALTH_H_
