// attnload's command line.
#ifndef ATTND_CLIENT_TOOLS_LOAD_LOAD_FLAGS_H_
#define ATTND_CLIENT_TOOLS_LOAD_LOAD_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/tools/args.h"
#include "client/tools/load/plan.h"

namespace attnd::tools {

std::vector<Flag> LoadFlags();

struct CommandLine {
  std::string server;
  ClientOptions client;
  Plan plan;
  bool json = false;
  bool csv = false;
  std::string html;  // path; empty: none
};

// Reads the files that it names. INVALID_ARGUMENT naming the flag and its value; NOT_FOUND.
absl::StatusOr<CommandLine> ReadCommandLine(const std::vector<std::string>& words);

// "100", "50%", "100..400", each of --rate's list.
absl::StatusOr<PlannedRate> ParseRate(const std::string& text);

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_LOAD_LOAD_FLAGS_H_
