// A fuzzer's input: a message, and where it is cut.
#ifndef ATTND_TESTS_FUZZ_CUT_MESSAGE_H_
#define ATTND_TESTS_FUZZ_CUT_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/wire/messages.h"

namespace attnd::testing {

// A byte whose low 3 bits count the cuts, 2 bytes (little-endian offset) a cut, the message; an
// input that is too short for its cuts is an empty message.
struct CutMessage {
  CutMessage(const uint8_t* data, size_t size) {
    const size_t cut_count = size == 0 ? 0 : data[0] & 7;
    const size_t begin = 1 + 2 * cut_count;
    if (size < begin) return;
    for (size_t i = 0; i < cut_count; ++i) {
      cuts.push_back(data[1 + 2 * i] | size_t{data[2 + 2 * i]} << 8);
    }
    message.assign(reinterpret_cast<const char*>(data) + begin, size - begin);
  }

  std::vector<size_t> cuts;
  std::string message;
};

}  // namespace attnd::testing

#endif  // ATTND_TESTS_FUZZ_CUT_MESSAGE_H_
