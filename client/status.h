// gRPC's status as absl's: the codes are the same numbers.
#ifndef ATTND_CLIENT_STATUS_H_
#define ATTND_CLIENT_STATUS_H_

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace attnd::client {

inline absl::Status ToAbsl(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace attnd::client

#endif  // ATTND_CLIENT_STATUS_H_
