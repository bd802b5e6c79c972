// Text files that say what to send: mixes and traces.
//
// A line a kind, or a call: words NAME=VALUE with the names of call_kind.h, in any order; what a
// line does not name is as the last line that begins with "default" has it, else as the command
// line. Empty lines and what follows # are skipped.
//
//   mix     weight=3 q_len=128                     # three quarters of the calls
//           weight=1 q_len=4096 priority=1
//   trace   default q_heads=32 kv_heads=8 head_dim=128
//           at_ms=0     q_len=812
//           at_ms=31.5  q_len=96 kv_len=908 timeout_ms=500
#ifndef ATTND_CLIENT_TOOLS_LOAD_WORK_FILE_H_
#define ATTND_CLIENT_TOOLS_LOAD_WORK_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tools/load/arrivals.h"
#include "client/tools/load/call_kind.h"

namespace attnd::tools {

inline constexpr int64_t kMostWorkFileBytes = int64_t{64} << 20;

struct Trace {
  std::vector<CallKind> kinds;    // each once
  std::vector<Arrival> arrivals;  // by time; their kinds are indices of `kinds`
};

// NOT_FOUND; INVALID_ARGUMENT "PATH:LINE: ..." for a line that is not of that form, for a trace
// whose times go back or that has a weight, for a mix that has times, and for a file with no line
// of a call.
absl::StatusOr<std::vector<CallKind>> ReadMix(const std::string& path, const CallKind& defaults);
absl::StatusOr<Trace> ReadTrace(const std::string& path, const CallKind& defaults);

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_LOAD_WORK_FILE_H_
