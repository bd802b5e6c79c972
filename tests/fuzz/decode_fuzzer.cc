// Differential: wire::Decode against ParseFromString and the checks, on one message cut into spans.
//
// What is asserted: the same code, the same message from the checks, the same problems and payload
// bytes, and that no accepted problem reaches outside its tensors.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/cut_message.h"
#include "tests/wire/reference_decode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const attnd::testing::CutMessage input(data, size);
  const attnd::testing::Split split(input.message, input.cuts);
  const attnd::testing::Comparison comparison =
      attnd::testing::CompareWithProtobuf(input.message, split.spans());
  if (!comparison.difference.empty()) {
    std::fprintf(stderr, "decode_fuzzer: %s\n", comparison.difference.c_str());
    std::abort();
  }
  return 0;
}
