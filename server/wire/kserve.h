// The Open Inference Protocol's inferences: bytes to Request, Answer to bytes. A thin translation
// into attnd.v1's header; checks, limits and copies are those of attnd.v1.
// proto/inference/grpc_service.proto says what means what.
#ifndef ATTND_SERVER_WIRE_KSERVE_H_
#define ATTND_SERVER_WIRE_KSERVE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/wire/wire.h"

namespace attnd::server::wire {

inline constexpr char kModelName[] = "attention";
inline constexpr char kModelVersion[] = "1";

// OK, or NOT_FOUND naming both. A version of "" is the one there is.
absl::Status CheckModel(absl::string_view name, absl::string_view version);

// What a request asks back.
struct WantedOutputs {
  bool o = true;
  bool lse = true;
};

// One ModelInferRequest, from its bytes to those of its answer. Not thread-safe.
class Inference {
 public:
  // As wire::Decode, for a ModelInferRequest; also NOT_FOUND, as CheckModel. May be tried again
  // when the pool had no room.
  absl::StatusOr<std::unique_ptr<Request>> Decode(absl::Span<const ByteSpan> message,
                                                  const Limits& limits, TimePoint arrival,
                                                  BufferPool& pool);

  // The request's own id; empty until it has been read.
  const std::string& id() const { return id_; }

  // The answer as a ModelInferResponse, in the pieces of wire::Encode; `request` comes from Decode.
  // An output that was not asked for is taken out of `answer`.
  EncodedAnswer Encode(const Request& request, Answer& answer) const;
  // The same as a ModelStreamInferResponse.
  EncodedAnswer EncodeStreamed(const Request& request, Answer& answer) const;
  // The ModelStreamInferResponse of a failure.
  std::string EncodeFailure(const absl::Status& status) const;

 private:
  std::string id_;
  WantedOutputs wanted_;
};

}  // namespace attnd::server::wire

#endif  // ATTND_SERVER_WIRE_KSERVE_H_
