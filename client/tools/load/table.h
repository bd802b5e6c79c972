// What a person sees: a table, and how far a step has come.
#ifndef ATTND_CLIENT_TOOLS_LOAD_TABLE_H_
#define ATTND_CLIENT_TOOLS_LOAD_TABLE_H_

#include <string>

#include "client/tools/load/plan.h"

namespace attnd::tools {

// What is sent, and the table's head.
std::string TableHead(const Plan& plan);
// A line of the table, and below it what went wrong.
std::string TableLine(const Step& step);
// The answer to --slo; empty without it.
std::string SloText(const Plan& plan, const RunResult& run);

// "[#####.....]  50 %  812.0/s  p99 3.1 ms", without an end of line.
std::string ProgressBar(const Progress& progress);

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_LOAD_TABLE_H_
