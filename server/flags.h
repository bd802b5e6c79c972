// attnd's command line.
#ifndef ATTND_SERVER_FLAGS_H_
#define ATTND_SERVER_FLAGS_H_

#include <string>

#include "absl/status/statusor.h"
#include "server/options.h"

namespace attnd::server {

struct CommandLine {
  ServerOptions server;
  std::string port_file;
  std::string log_level;
  bool probe = false;
};

inline constexpr int kBadFlagsExit = 2;

// Reads the flags. Ends the process for --help and --version (0) and for flags that abseil cannot
// read (kBadFlagsExit); INVALID_ARGUMENT for values that it can read but attnd cannot take.
absl::StatusOr<CommandLine> ParseCommandLine(int argc, char** argv);

}  // namespace attnd::server

#endif  // ATTND_SERVER_FLAGS_H_
