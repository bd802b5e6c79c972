// The tensors of a header: enum values, ranks, extents, sizes.
#ifndef ATTND_SERVER_WIRE_EXTENTS_H_
#define ATTND_SERVER_WIRE_EXTENTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "attnd/v1/attnd.pb.h"
#include "kernels/attention.h"
#include "server/wire/wire.h"

namespace attnd::server::wire {

// What the three tensors say together. Packed: batch is 1 and the lengths are the totals.
struct Extents {
  v1::Layout layout = v1::LAYOUT_BHSD;  // never UNSPECIFIED
  kernels::DType dtype = kernels::DType::kF32;
  int64_t batch = 0;
  int64_t q_heads = 0;
  int64_t kv_heads = 0;
  int64_t q_len = 0;
  int64_t kv_len = 0;
  int64_t head_dim = 0;

  bool packed() const { return layout == v1::LAYOUT_THD; }
};

// INVALID_ARGUMENT: a spec, dtype or rank is missing or wrong, an extent is negative, a size
// overflows, or the tensors disagree. UNIMPLEMENTED: an enum value that this version does not know.
// Left to kernels::Validate(): heads, head_dim's range, and products of several extents.
absl::StatusOr<Extents> ReadExtents(const v1::ComputeHeader& header,
                                    const FieldNames& names = kHeaderNames);

// INVALID_ARGUMENT with both numbers unless each payload is exactly as long as its shape says;
// one that lies in a region, empty.
// ReadExtents() has passed.
absl::Status CheckPayloadSizes(const v1::ComputeHeader& header, kernels::DType dtype,
                               const PayloadBytes& given, const FieldNames& names);

// What the shapes mean. ReadExtents() has passed.
PayloadBytes SizesOf(const v1::ComputeHeader& header, kernels::DType dtype);

// UNIMPLEMENTED, naming the field and the number.
absl::Status UnknownEnumValue(const char* field, const char* type, int value);

}  // namespace attnd::server::wire

#endif  // ATTND_SERVER_WIRE_EXTENTS_H_
