// What attnctl run prints.
#ifndef ATTND_CLIENT_TOOLS_RUN_REPORT_H_
#define ATTND_CLIENT_TOOLS_RUN_REPORT_H_

#include <string>

#include "absl/types/optional.h"
#include "client/client.h"
#include "client/tools/verify.h"

namespace attnd::tools {

struct RunReport {
  std::string server;
  const AttentionRequest* request = nullptr;
  const AttentionResult* result = nullptr;
  absl::optional<Verification> verification;
};

std::string ToJson(const RunReport& report);   // one line
std::string ToTable(const RunReport& report);  // for a person

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_RUN_REPORT_H_
