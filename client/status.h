// gRPC's status as absl's: the codes are the same numbers.
#ifndef ATTND_CLIENT_STATUS_H_
#define ATTND_CLIENT_STATUS_H_

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "grpcpp/support/status.h"

namespace attnd::client {

inline absl::Status ToAbsl(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

// A payload of a status: the server has computed nothing, and does not hold the call's regions.
inline constexpr char kUntouchedUrl[] = "attnd/untouched";
inline void SetUntouched(absl::Status& status) { status.SetPayload(kUntouchedUrl, absl::Cord()); }
inline bool IsUntouched(const absl::Status& status) {
  return status.GetPayload(kUntouchedUrl).has_value();
}

}  // namespace attnd::client

#endif  // ATTND_CLIENT_STATUS_H_
