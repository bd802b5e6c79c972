// Tensors of a header that lie in memory regions.
#ifndef ATTND_SERVER_WIRE_REGION_TENSORS_H_
#define ATTND_SERVER_WIRE_REGION_TENSORS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "attnd/v1/attnd.pb.h"
#include "server/regions/region_table.h"
#include "server/wire/extents.h"
#include "server/wire/wire.h"

namespace attnd::server::wire {

struct RegionTensor {
  const char* name = "";  // of the field
  RegionHandle handle{};
  int64_t offset_bytes = 0;
  int64_t span_bytes = 0;              // from its first element to past its last; 0: it has none
  std::vector<int64_t> strides_elems;  // for each axis of its shape
};

// Those that the header names; absent: inline.
struct RegionTensors {
  absl::optional<RegionTensor> q;
  absl::optional<RegionTensor> k;
  absl::optional<RegionTensor> v;
  absl::optional<RegionTensor> o;
  absl::optional<RegionTensor> lse;

  bool none() const { return !q && !k && !v && !o && !lse; }
};

// Whether it names any.
bool NamesRegions(const v1::ComputeHeader& header);

// UNIMPLEMENTED: there are some, and this server takes none, or there are gaps where it takes none.
// INVALID_ARGUMENT: a handle is not 16 bytes, an offset is negative or no multiple of the element's
// size, strides do not fit the shape, are negative or come without a region, an output's elements
// share their place, a size overflows, a place is given for an LSE that is not wanted.
// ReadExtents() has passed.
absl::StatusOr<RegionTensors> ReadRegionTensors(const v1::ComputeHeader& header,
                                                const Extents& extents, const Limits& limits);

// Puts their strides, and the offsets that follow, in place of those of dense tensors.
void PlaceInRegions(const RegionTensors& tensors, const v1::ComputeHeader& header,
                    const Extents& extents, std::vector<ProblemSlot>& slots);

// Leases the ranges, inputs to read and outputs to write, and lends them to the request, which
// comes from Check() with this header and these limits. RegionTable::Pin's errors with the field's
// name, but UNAVAILABLE where a region has no more leases.
absl::Status LeaseRegions(const v1::ComputeHeader& header, const Limits& limits, RegionTable& table,
                          Request& request);

}  // namespace attnd::server::wire

#endif  // ATTND_SERVER_WIRE_REGION_TENSORS_H_
