#include <utility>

#include "absl/strings/str_cat.h"
#include "attnd/v1/attnd.pb.h"
#include "server/wire/region_tensors.h"
#include "server/wire/span_reader.h"
#include "server/wire/wire.h"

namespace attnd::server::wire {
namespace {

// One copy, from where the payload lies into a buffer of the pool.
absl::StatusOr<Buffer> CopyPayload(absl::Span<const ByteSpan> message, const Payload& payload,
                                   BufferPool& pool) {
  absl::StatusOr<Buffer> buffer = pool.Allocate(payload.size_bytes);
  if (!buffer.ok() || payload.size_bytes == 0) return buffer;
  SpanReader reader(message);
  reader.Skip(payload.offset_bytes);
  reader.CopyTo(payload.size_bytes, buffer->data(), payload.size_bytes);
  return buffer;
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
  const int64_t payload_bytes =
      scanned->q.size_bytes + scanned->k.size_bytes + scanned->v.size_bytes;
  if (payload_bytes > pool.budget_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("q, k and v are ", payload_bytes,
                                                   " bytes together; this server's memory for ",
                                                   "payloads is ", pool.budget_bytes()));
  }

  const struct {
    const Payload& from;
    Buffer& to;
  } payloads[] = {
      {scanned->q, (*request)->q}, {scanned->k, (*request)->k}, {scanned->v, (*request)->v}};
  for (const auto& payload : payloads) {
    absl::StatusOr<Buffer> buffer = CopyPayload(message, payload.from, pool);
    if (!buffer.ok()) return buffer.status();
    payload.to = std::move(*buffer);
  }
  // Last, so that nothing is leased for a call that waits for memory.
  if (NamesRegions(*scanned->header)) {
    absl::Status status = LeaseRegions(*scanned->header, limits, *regions, **request);
    if (!status.ok()) return status;
  }
  return request;
}

}  // namespace attnd::server::wire
