// Measured rows, for people and for programs.
#ifndef ATTND_TESTS_BENCH_REPORT_H_
#define ATTND_TESTS_BENCH_REPORT_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tests/bench/ceiling.h"
#include "tests/bench/measure.h"

namespace attnd::bench {

// Machine, toolchain and date: no number without them. Lines that begin with "# ".
std::string Machine();
// Those, and how a kernel is timed.
std::string Recipe(int threads, const MeasureOptions& options);

// One line a row, columns aligned, a header first.
std::string ToTable(const std::vector<Row>& rows);

// What a row is in JSON.
nlohmann::ordered_json ToObject(const Row& row);

// A JSON array, an object a row; then an object a ceiling: {"ceiling": its name, its unit: its
// value}.
std::string ToJson(const std::vector<Row>& rows, const std::vector<Ceiling>& ceilings = {});

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_REPORT_H_
