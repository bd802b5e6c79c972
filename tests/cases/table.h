// The one table of cases. Conformance tests run every group on every backend; kernel_bench times
// the groups marked as benches, and with --all_cases every case. A new row reaches all of them.
#ifndef ATTND_TESTS_CASES_TABLE_H_
#define ATTND_TESTS_CASES_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "tests/cases/case.h"

namespace attnd::testing {

struct CaseGroup {
  std::string name = {};         // an identifier; its cases are called "<name>/..."
  bool is_bench = false;         // sized to be timed, too large to be checked whole
  std::vector<Case> cases = {};  // never empty
};

// Built at the first call, the same at every call. Thread-safe.
const std::vector<CaseGroup>& CaseGroups();

// Lengths one below, at and one above one and two tiles of a plan, each way. For backends whose
// tiles the table does not know.
std::vector<Case> TileEdgeCases(kernels::DType dtype, const kernels::MaskSpec& mask,
                                int64_t head_dim, int64_t q_tile, int64_t kv_tile);

// The parts that CaseGroups() joins.
std::vector<CaseGroup> ShapeGroups();
std::vector<CaseGroup> MaskGroups();
std::vector<CaseGroup> NumberGroups();
std::vector<CaseGroup> BenchGroups();

inline constexpr kernels::DType kDTypes[] = {kernels::DType::kF32, kernels::DType::kF16,
                                             kernels::DType::kBF16};
inline constexpr kernels::MaskSpec kFull = {};
inline constexpr kernels::MaskSpec kCausal = {.causal = {kernels::Causal::kBottomRight},
                                              .window = {}};
inline constexpr kernels::MaskSpec kCausalTopLeft = {.causal = {kernels::Causal::kTopLeft},
                                                     .window = {}};

// Names a case "<group>/<dtype>_d<head_dim>_h<q_heads>x<kv_heads>_q<q_len>_kv<kv_len>_<mask>" with
// what else differs from the defaults, and appends it. Two cases of one name are an error of the
// table, which a test finds.
void Add(CaseGroup& group, Case c);

}  // namespace attnd::testing

#endif  // ATTND_TESTS_CASES_TABLE_H_
