// The decoder of the Open Inference Protocol against protobuf's parser, on one message cut into
// spans.
#ifndef ATTND_TESTS_WIRE_KSERVE_REFERENCE_H_
#define ATTND_TESTS_WIRE_KSERVE_REFERENCE_H_

#include <string>

#include "absl/status/status.h"
#include "server/wire/wire.h"
#include "tests/wire/reference_decode.h"

namespace attnd::testing {

// `spans` are the bytes, cut. The same status as for the bytes in one piece; of a request that is
// taken: protobuf takes it too, Q, K and V are its bytes, no problem reaches beyond them, and the
// answer parses.
Comparison CompareInfer(const std::string& bytes, absl::Span<const server::wire::ByteSpan> spans);

}  // namespace attnd::testing

#endif  // ATTND_TESTS_WIRE_KSERVE_REFERENCE_H_
