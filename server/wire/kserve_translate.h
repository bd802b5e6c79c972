// A ModelInferRequest in attnd.v1's terms.
#ifndef ATTND_SERVER_WIRE_KSERVE_TRANSLATE_H_
#define ATTND_SERVER_WIRE_KSERVE_TRANSLATE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "attnd/v1/attnd.pb.h"
#include "inference/grpc_service.pb.h"
#include "server/regions/shm_host.h"
#include "server/wire/kserve.h"
#include "server/wire/kserve_parameters.h"
#include "server/wire/payloads.h"
#include "server/wire/wire.h"

namespace attnd::server::wire {

// How errors of the checks call its parts.
inline constexpr FieldNames kInferNames{
    "Q",  "K",    "V",    "CU_SEQLENS_Q", "CU_SEQLENS_K", "parameter timeout",
    "id", "FP32", "FP16", "BF16"};

// What a first scan finds: everything but the raw contents, parsed, and where those lie.
struct ScannedInfer {
  inference::ModelInferRequest request;
  std::vector<Payload> raw;
};

// As wire::Scan.
absl::StatusOr<ScannedInfer> ScanInfer(absl::Span<const ByteSpan> message, const Limits& limits);

// The bytes of an input, wherever they are.
struct InputBytes {
  absl::optional<Payload> raw;      // in the message
  ByteSpan typed;                   // of its contents, in the scanned request
  absl::optional<ShmRange> shared;  // in the caller's shared memory

  int64_t shared_bytes() const { return shared ? shared->size_bytes() : 0; }
  // `message`, and this, outlive it.
  PayloadSource Source(absl::Span<const ByteSpan> message) const;
};

struct TranslatedInfer {
  v1::ComputeHeader header;
  InputBytes q;
  InputBytes k;
  InputBytes v;
  WantedOutputs wanted;

  int64_t shared_bytes() const { return q.shared_bytes() + k.shared_bytes() + v.shared_bytes(); }
};

// INVALID_ARGUMENT, naming input, output or parameter and its value, for what the header cannot
// say; NOT_FOUND as CheckModel; ShmOfCall::Find's errors. What the header says is for Check().
// `scanned` outlives the result.
absl::StatusOr<TranslatedInfer> Translate(const ScannedInfer& scanned,
                                          absl::Span<const ByteSpan> message, const Limits& limits,
                                          ShmOfCall& shm);

}  // namespace attnd::server::wire

#endif  // ATTND_SERVER_WIRE_KSERVE_TRANSLATE_H_
