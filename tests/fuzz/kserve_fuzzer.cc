// A ModelInferRequest cut into spans, against protobuf: CompareInfer. The input is decode_fuzzer's.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/cut_message.h"
#include "tests/wire/kserve_reference.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const attnd::testing::CutMessage input(data, size);
  const attnd::testing::Split split(input.message, input.cuts);
  const auto comparison = attnd::testing::CompareInfer(input.message, split.spans());
  if (!comparison.difference.empty()) {
    std::fprintf(stderr, "kserve_fuzzer: %s\n", comparison.difference.c_str());
    std::abort();
  }
  return 0;
}
