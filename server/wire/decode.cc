#include "attnd/v1/attnd.pb.h"
#include "server/wire/payloads.h"
#include "server/wire/region_tensors.h"
#include "server/wire/wire.h"

namespace attnd::server::wire {
namespace {

PayloadSource In(absl::Span<const ByteSpan> message, const Payload& payload) {
  return {message, payload.offset_bytes, payload.size_bytes};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Request>> Decode(absl::Span<const ByteSpan> message,
                                                const Limits& limits, TimePoint arrival,
                                                BufferPool& pool, RegionTable* regions) {
  absl::StatusOr<ScannedRequest> scanned = Scan(message, limits);
  if (!scanned.ok()) return scanned.status();
  absl::StatusOr<std::unique_ptr<Request>> request =
      Check(*scanned->header, scanned->q.size_bytes, scanned->k.size_bytes, scanned->v.size_bytes,
            limits, arrival);
  if (!request.ok()) return request;
  absl::Status status = CopyPayloads(
      {In(message, scanned->q), In(message, scanned->k), In(message, scanned->v)}, pool, **request);
  if (!status.ok()) return status;
  // Last, so that nothing is leased for a call that waits for memory.
  if (NamesRegions(*scanned->header)) {
    status = LeaseRegions(*scanned->header, limits, *regions, **request);
    if (!status.ok()) return status;
  }
  return request;
}

}  // namespace attnd::server::wire
