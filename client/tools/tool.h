// What the tools share: exit codes, the server's address, errors for a person.
#ifndef ATTND_CLIENT_TOOLS_TOOL_H_
#define ATTND_CLIENT_TOOLS_TOOL_H_

#include <string>

#include "absl/status/status.h"
#include "client/client.h"
#include "client/tools/args.h"

namespace attnd::tools {

inline constexpr int kOk = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;

inline constexpr char kDefaultServer[] = "127.0.0.1:7070";

// "UNAVAILABLE: ...", and for a server that cannot be reached its address and what to try.
std::string Explain(const absl::Status& status, const std::string& server);

// --transport; *transport is left alone if it is absent.
absl::Status ReadTransport(const Args& args, Transport* transport);

// Freed memory stays with the process: page faults cost more than the copies (measured: 1.2 to 2.3
// times the throughput). A tool's decision, never a library's.
void TuneProcess();

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_TOOL_H_
