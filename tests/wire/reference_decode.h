// Decode against protobuf's own parser: the same code, the same request, the same bytes.
#ifndef ATTND_TESTS_WIRE_REFERENCE_DECODE_H_
#define ATTND_TESTS_WIRE_REFERENCE_DECODE_H_

#include <string>

#include "absl/types/span.h"
#include "server/wire/wire.h"

namespace attnd::testing {

struct Comparison {
  absl::Status status;     // what Decode said
  std::string difference;  // empty: Decode and the reference agree
};

// The reference is ParseFromString of `bytes`, which `spans` hold in pieces, then the checks. Also
// says where an accepted request would reach outside its own buffers.
Comparison CompareWithProtobuf(const std::string& bytes,
                               absl::Span<const server::wire::ByteSpan> spans);

// Where a request's problems reach beyond its tensors; empty if nowhere.
std::string Overreach(const server::Request& request);

}  // namespace attnd::testing

#endif  // ATTND_TESTS_WIRE_REFERENCE_DECODE_H_
