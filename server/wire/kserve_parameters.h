// Parameters of the Open Inference Protocol: of a request, of its inputs, of its outputs.
#ifndef ATTND_SERVER_WIRE_KSERVE_PARAMETERS_H_
#define ATTND_SERVER_WIRE_KSERVE_PARAMETERS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "attnd/v1/attnd.pb.h"
#include "inference/grpc_service.pb.h"
#include "server/wire/wire.h"

namespace attnd::server::wire {

using InferParameters = google::protobuf::Map<std::string, inference::InferParameter>;

// A caller's text in a message: escaped, and cut where it is long.
std::string Quoted(absl::string_view text);

// Puts what they say into the header. INVALID_ARGUMENT names the parameter and its value: one that
// there is not, that means nothing here, or that cannot be read.
absl::Status ReadParameters(const InferParameters& parameters, const Limits& limits,
                            v1::ComputeHeader& header);

// Where a tensor lies in memory that has a name.
struct NamedPlace {
  std::string region;
  int64_t offset_bytes = 0;
  int64_t size_bytes = 0;
};

// The place of the tensor called `tensor`, "input Q"; absent: it comes or goes with the message.
absl::StatusOr<absl::optional<NamedPlace>> ReadPlace(const std::string& tensor,
                                                     const InferParameters& parameters);

}  // namespace attnd::server::wire

#endif  // ATTND_SERVER_WIRE_KSERVE_PARAMETERS_H_
