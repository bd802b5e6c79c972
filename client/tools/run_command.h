// attnctl run: one problem from files, its answer to files.
#ifndef ATTND_CLIENT_TOOLS_RUN_COMMAND_H_
#define ATTND_CLIENT_TOOLS_RUN_COMMAND_H_

#include <vector>

#include "client/tools/args.h"

namespace attnd::tools {

std::vector<Flag> RunFlags();

// The exit code; what went wrong is on stderr.
int Run(const Args& args);

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_RUN_COMMAND_H_
