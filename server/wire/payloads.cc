#include "server/wire/payloads.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/wire/span_reader.h"

namespace attnd::server::wire {
namespace {

absl::StatusOr<Buffer> CopyPayload(const PayloadSource& from, const char* name, BufferPool& pool) {
  absl::StatusOr<Buffer> buffer = pool.Allocate(from.size_bytes);
  if (!buffer.ok() || from.size_bytes == 0) return buffer;
  if (from.shared != nullptr) {
    const absl::Status status = from.shared->ReadInto(buffer->data());
    if (status.ok()) return buffer;
    return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
  }
  SpanReader reader(from.spans);
  reader.Skip(from.offset_bytes);
  reader.CopyTo(from.size_bytes, buffer->data(), from.size_bytes);
  return buffer;
}

}  // namespace

absl::Status CopyPayloads(const PayloadSources& from, BufferPool& pool, Request& to,
                          const FieldNames& names) {
  if (from.total_bytes() > pool.budget_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "q, k and v are ", from.total_bytes(),
        " bytes together; this server's memory for payloads is ", pool.budget_bytes()));
  }
  const struct {
    const PayloadSource& from;
    const char* name;
    Buffer& to;
  } payloads[] = {{from.q, names.q, to.q}, {from.k, names.k, to.k}, {from.v, names.v, to.v}};
  for (const auto& payload : payloads) {
    absl::StatusOr<Buffer> buffer = CopyPayload(payload.from, payload.name, pool);
    if (!buffer.ok()) return buffer.status();
    payload.to = std::move(*buffer);
  }
  return absl::OkStatus();
}

}  // namespace attnd::server::wire
