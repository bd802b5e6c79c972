// Differential: wire::Decode against ParseFromString and the checks, on one message cut into spans.
//
// Input: a byte whose low 3 bits count the cuts, 2 bytes (little-endian offset) a cut, the message.
// What is asserted: the same code, the same message from the checks, the same problems and payload
// bytes, and that no accepted problem reaches outside its tensors.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/wire/messages.h"
#include "tests/wire/reference_decode.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t cut_count = data[0] & 7;
  if (size < 1 + 2 * cut_count) return 0;
  std::vector<size_t> cuts;
  for (size_t i = 0; i < cut_count; ++i) {
    cuts.push_back(data[1 + 2 * i] | size_t{data[2 + 2 * i]} << 8);
  }
  const std::string message(reinterpret_cast<const char*>(data) + 1 + 2 * cut_count,
                            size - 1 - 2 * cut_count);
  const attnd::testing::Split split(message, cuts);
  const attnd::testing::Comparison comparison =
      attnd::testing::CompareWithProtobuf(message, split.spans());
  if (!comparison.difference.empty()) {
    std::fprintf(stderr, "decode_fuzzer: %s\n", comparison.difference.c_str());
    std::abort();
  }
  return 0;
}
