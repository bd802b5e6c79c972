// The Open Inference Protocol's inferences: bytes to Request, Answer to bytes. A thin translation
// into attnd.v1's header; checks, limits and copies are those of attnd.v1.
// proto/inference/grpc_service.proto says what means what.
#ifndef ATTND_SERVER_WIRE_KSERVE_H_
#define ATTND_SERVER_WIRE_KSERVE_H_

#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "server/regions/shm_host.h"
#include "server/wire/wire.h"

namespace attnd::server::wire {

inline constexpr char kModelName[] = "attention";
inline constexpr char kModelVersion[] = "1";

// OK, or NOT_FOUND naming both. A version of "" is the one there is.
absl::Status CheckModel(absl::string_view name, absl::string_view version);

// What a request asks back.
struct WantedOutputs {
  // A part of the caller's shared memory.
  struct Place {
    std::string region;
    int64_t offset_bytes = 0;
    ShmRange range;
  };

  bool o = true;
  bool lse = true;
  // Where it is to go; absent: with the answer.
  absl::optional<Place> o_place{};
  absl::optional<Place> lse_place{};
};

// One ModelInferRequest, from its bytes to those of its answer. Not thread-safe.
class Inference {
 public:
  // `shm`: the way to tensors in shared memory; by default none is taken.
  explicit Inference(ShmOfCall shm = {}) : shm_(std::move(shm)) {}

  // As wire::Decode, for a ModelInferRequest; also NOT_FOUND, as CheckModel, and the errors of
  // ShmOfCall::Find and ShmRange::ReadInto. May be tried again when the pool had no room, and
  // elsewhere when it would have copied more than `max_shared_bytes` from shared memory, which is
  // RESOURCE_EXHAUSTED too.
  absl::StatusOr<std::unique_ptr<Request>> Decode(absl::Span<const ByteSpan> message,
                                                  const Limits& limits, TimePoint arrival,
                                                  BufferPool& pool,
                                                  int64_t max_shared_bytes = kAllBytes);
  static constexpr int64_t kAllBytes = std::numeric_limits<int64_t>::max();

  // The request's own id; empty until it has been read.
  const std::string& id() const { return id_; }

  // Of inputs in shared memory; 0 until they have been looked up.
  int64_t shared_input_bytes() const { return shared_input_bytes_; }

  // Outputs that go to shared memory, and not with the answer.
  struct SharedOutputs {
    Buffer o;
    Buffer lse;
    int64_t size_bytes() const { return o.size_bytes() + lse.size_bytes(); }
  };
  // Takes them out of the answer: before Encode.
  SharedOutputs TakeSharedOutputs(Answer& answer) const;
  // Copies them to where they are to be: before the answer is sent. ShmRange::WriteFrom's errors,
  // with the output's name.
  absl::Status PlaceOutputs(const SharedOutputs& outputs) const;

  // The answer as a ModelInferResponse, in the pieces of wire::Encode; `request` comes from Decode.
  // An output that was not asked for is taken out of `answer`.
  EncodedAnswer Encode(const Request& request, Answer& answer) const;
  // The same as a ModelStreamInferResponse.
  EncodedAnswer EncodeStreamed(const Request& request, Answer& answer) const;
  // The ModelStreamInferResponse of a failure.
  std::string EncodeFailure(const absl::Status& status) const;

 private:
  ShmOfCall shm_;
  std::string id_;
  WantedOutputs wanted_;
  int64_t shared_input_bytes_ = 0;
};

}  // namespace attnd::server::wire

#endif  // ATTND_SERVER_WIRE_KSERVE_H_
