// A row a step: JSON and CSV.
#ifndef ATTND_CLIENT_TOOLS_LOAD_ROWS_H_
#define ATTND_CLIENT_TOOLS_LOAD_ROWS_H_

#include <cstddef>
#include <string>

#include "client/tools/load/plan.h"
#include "nlohmann/json.hpp"

namespace attnd::tools {

// client/README.md lists the fields. `number` counts the steps from 1.
nlohmann::ordered_json RowOf(const Plan& plan, const Step& step, size_t number);

// One line; text that is not UTF-8 (a hostile server's) is replaced.
std::string ToJsonLine(const nlohmann::ordered_json& json);

// The plain fields of a row, those with a list or an object left out.
std::string CsvHeader();
std::string ToCsvLine(const nlohmann::ordered_json& row);

// "4 callers", "100.0/s", "100.0/s to 400.0/s by 8", "trace at 2x".
std::string OfferedText(const StepSpec& spec);

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_LOAD_ROWS_H_
