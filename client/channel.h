// The connections to one server: one for control and small calls, one for bulk, so that a small
// call never waits behind a large one (0.5 ms against 23 ms behind 256 MB messages).
#ifndef ATTND_CLIENT_CHANNEL_H_
#define ATTND_CLIENT_CHANNEL_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"

namespace attnd::client {

// OK for "host:port" and "unix:/path".
absl::Status CheckAddress(const std::string& address);

// A connection that takes no byte for this long is dead: the other machine is gone or frozen. gRPC
// holds on to what it is writing until then, beyond every deadline. Its own default on servers is
// 20 s; a network's hiccups and TCP's first retransmissions take less than 10 s.
inline constexpr absl::Duration kStalledTimeout = absl::Seconds(10);

struct Channels {
  // `address` has passed CheckAddress. Connects with the first call.
  explicit Channels(const std::string& address);

  std::shared_ptr<grpc::Channel> control;
  std::shared_ptr<grpc::Channel> bulk;
};

}  // namespace attnd::client

#endif  // ATTND_CLIENT_CHANNEL_H_
