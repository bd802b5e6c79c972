// A page with figures, for a browser.
#ifndef ATTND_CLIENT_TOOLS_LOAD_PAGE_H_
#define ATTND_CLIENT_TOOLS_LOAD_PAGE_H_

#include <string>

#include "absl/status/status.h"
#include "client/tools/load/plan.h"

namespace attnd::tools {

// page.html, with "{{data}}" where the data goes.
extern const char kPageHtml[];

// One file that needs no other and no network: the rows as RowOf has them, and beside them each
// step's windows and percentiles, drawn by the page's own script.
std::string ToPage(const std::string& server, const Plan& plan, const RunResult& run);

// Writes a file anew. PERMISSION_DENIED naming the path if that cannot be.
absl::Status WriteTextFile(const std::string& path, const std::string& text);

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_LOAD_PAGE_H_
