// Where the bytes of q, k and v lie before they are in the server's own memory.
#ifndef ATTND_SERVER_WIRE_PAYLOADS_H_
#define ATTND_SERVER_WIRE_PAYLOADS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/memory/buffer_pool.h"
#include "server/regions/shm_object.h"
#include "server/request.h"
#include "server/wire/wire.h"

namespace attnd::server::wire {

// Some bytes of a message, or of what was made of one; or a caller's shared memory. All stay where
// they are.
struct PayloadSource {
  absl::Span<const ByteSpan> spans;
  int64_t offset_bytes = 0;
  int64_t size_bytes = 0;
  const ShmRange* shared = nullptr;  // of size_bytes; null: in the spans
};

struct PayloadSources {
  PayloadSource q;
  PayloadSource k;
  PayloadSource v;

  int64_t total_bytes() const { return q.size_bytes + k.size_bytes + v.size_bytes; }
};

// Copies each into a buffer of `pool`, once. RESOURCE_EXHAUSTED from the pool; INVALID_ARGUMENT for
// what its budget can never hold; ShmRange::ReadInto's errors, with the tensor's name.
absl::Status CopyPayloads(const PayloadSources& from, BufferPool& pool, Request& to,
                          const FieldNames& names = kHeaderNames);

}  // namespace attnd::server::wire

#endif  // ATTND_SERVER_WIRE_PAYLOADS_H_
