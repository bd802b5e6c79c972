// What attnload prints.
#ifndef ATTND_CLIENT_TOOLS_LOAD_REPORT_H_
#define ATTND_CLIENT_TOOLS_LOAD_REPORT_H_

#include <string>

#include "client/tools/load.h"

namespace attnd::tools {

std::string ToJson(const LoadOptions& options, const LoadResult& result);   // one line
std::string ToTable(const LoadOptions& options, const LoadResult& result);  // for a person

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_LOAD_REPORT_H_
