// One table of requests that must be refused, each with its code and what its message must name:
// for the wire's own tests, for a service in process, and (written to files by the program
// malformed_cases) for a server over the network.
#ifndef ATTND_TESTS_WIRE_MALFORMED_CASES_H_
#define ATTND_TESTS_WIRE_MALFORMED_CASES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace attnd::testing {

struct MalformedCase {
  std::string name;
  std::string bytes;  // a serialized ComputeRequest, or what a broken client makes of one
  absl::StatusCode code;
  std::vector<std::string> substrings;  // of the error message, all of them
};

// Refused under default Limits, whatever comes before. Names are unique.
std::vector<MalformedCase> MalformedCases();

// Its two halves: parse, and must not pass the checks; not a message that this server understands.
void AddBadHeaders(std::vector<MalformedCase>& cases);
void AddBadMessages(std::vector<MalformedCase>& cases);

}  // namespace attnd::testing

#endif  // ATTND_TESTS_WIRE_MALFORMED_CASES_H_
