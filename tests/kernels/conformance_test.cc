// Every backend times every group of cases, against fp64 and in hostile memory. A backend gets all
// of these from its row in the registry, a case from its row in tests/cases/.
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/registry.h"
#include "tests/cases/memory.h"
#include "tests/cases/run.h"
#include "tests/cases/table.h"
#include "tests/kernels/check.h"

namespace attnd::testing {
namespace {

using kernels::AttentionProblem;

// More than one, so that work is really shared out.
constexpr int kThreads = 2;

std::vector<std::string> ConformanceGroups() {
  std::vector<std::string> names;
  for (const CaseGroup& group : CaseGroups()) {
    if (!group.is_bench) names.push_back(group.name);
  }
  return names;
}

const std::vector<Case>& CasesOf(const std::string& group_name) {
  for (const CaseGroup& group : CaseGroups()) {
    if (group.name == group_name) return group.cases;
  }
  static const auto* const none = new std::vector<Case>;
  return *none;
}

class Conformance : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    backend_ = MakeBackend(std::get<0>(GetParam()), kThreads);
    ASSERT_NE(backend_, nullptr);
    cases_ = &CasesOf(std::get<1>(GetParam()));
    ASSERT_FALSE(cases_->empty());
  }

  std::unique_ptr<kernels::Backend> backend_;
  const std::vector<Case>* cases_ = nullptr;
};

// Dense memory that ends where the tensors end, then two kinds of poison in odd strides; each with
// numbers of its own.
TEST_P(Conformance, IsWithinTheBoundsOfFp64) {
  uint64_t seed = 0;
  for (Placement placement : {Placement::kSnug, Placement::kOddNaN, Placement::kOddLarge}) {
    ++seed;
    for (const Case& c : *cases_) {
      CheckCase(*backend_, c, {.seed = seed, .placement = placement});
      if (HasFatalFailure()) return;
    }
  }
}

// NaN and Inf in keys that some rows of a tile see and others do not: only the former show it.
TEST_P(Conformance, AKeyTouchesOnlyRowsThatSeeIt) {
  for (EdgePoison edge : {EdgePoison::kValues, EdgePoison::kKeys}) {
    for (const Case& c : *cases_) {
      if (c.distribution != Distribution::kNormal || c.scale > 0) continue;
      CheckCase(*backend_, c, {.seed = 4, .placement = Placement::kOddNaN, .edge = edge});
      if (HasFatalFailure()) return;
    }
  }
}

// The plan names the kernel by the grammar and does not look at batch or heads beyond the group.
TEST_P(Conformance, PlanDependsOnTheSequenceAlone) {
  for (const Case& c : *cases_) {
    for (const AttentionProblem& p : ProblemsOf(c)) {
      SCOPED_TRACE(ToString(p));
      const kernels::KernelPlan plan = backend_->Plan(p);
      EXPECT_EQ(plan.key, KeyOf(p));
      EXPECT_GT(plan.q_tile, 0);
      EXPECT_GT(plan.kv_tile, 0);
      const std::string stem = KernelName(plan.key, "");
      EXPECT_EQ(plan.kernel.substr(0, stem.size()), stem);
      EXPECT_GT(plan.kernel.size(), stem.size());
      AttentionProblem wider = p;
      wider.batch = p.batch * 7 + 3;
      wider.q_heads = p.q_heads * 5;
      wider.kv_heads = p.kv_heads * 5;
      const kernels::KernelPlan wider_plan = backend_->Plan(wider);
      EXPECT_EQ(wider_plan.kernel, plan.kernel);
      EXPECT_EQ(wider_plan.q_tile, plan.q_tile);
      EXPECT_EQ(wider_plan.kv_tile, plan.kv_tile);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Conformance,
                         ::testing::Combine(::testing::ValuesIn(AvailableBackends()),
                                            ::testing::ValuesIn(ConformanceGroups())),
                         [](const auto& info) {
                           return TestName(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
                         });

class OneBackend : public ::testing::TestWithParam<std::string> {};

// Around the edges of the tiles that this backend says it uses.
TEST_P(OneBackend, IsWithinTheBoundsAroundItsTileEdges) {
  const auto backend = MakeBackend(GetParam(), kThreads);
  const kernels::MaskSpec window = {.causal = {}, .window = {17, 17}};
  uint64_t seed = 10;
  for (kernels::DType dtype : kDTypes) {
    for (const kernels::MaskSpec& mask : {kFull, kCausal, kCausalTopLeft, window}) {
      for (int64_t head_dim : {64, 128}) {
        const Case probe{
            .dtype = dtype, .lens = {{1000, 1000}}, .head_dim = head_dim, .mask = mask};
        const kernels::KernelPlan plan = backend->Plan(ProblemsOf(probe)[0]);
        for (const Case& c : TileEdgeCases(dtype, mask, head_dim, plan.q_tile, plan.kv_tile)) {
          CheckCase(*backend, c, {.seed = ++seed, .placement = Placement::kOddNaN});
          CheckCase(*backend, c,
                    {.seed = seed, .placement = Placement::kSnug, .edge = EdgePoison::kValues});
        }
      }
    }
  }
}

TEST_P(OneBackend, PackedNeighboursAreNotTouched) {
  const auto backend = MakeBackend(GetParam(), kThreads);
  for (const Case& c : CasesOf("layout")) {
    if (c.layout != Layout::kTHD) continue;
    for (int i = 0; i < static_cast<int>(c.lens.size()); ++i) {
      SCOPED_TRACE(c.name + ", sequence " + std::to_string(i));
      const MemoryOptions options{.seed = 1, .only_sequence = i};
      const CaseMemory all(c, {.seed = 1});
      CaseMemory memory(c, options);
      ASSERT_TRUE(RunTasks(*backend, memory.Tasks(*backend)).ok());
      EXPECT_EQ(memory.Check(), "");
      CheckNumbers(ExpectedOf(c, {.seed = 1}, all)[i], memory.problems()[i], memory.Output(i),
                   memory.Lse(i));
    }
  }
}

// LSE is optional, and O does not depend on whether it is asked for.
TEST_P(OneBackend, LseMayBeLeftOut) {
  const auto backend = MakeBackend(GetParam(), kThreads);
  for (const Case& c : CasesOf("layout")) {
    SCOPED_TRACE(c.name);
    CaseMemory with(c, {.seed = 1});
    CaseMemory without(c, {.seed = 1, .want_lse = false});
    ASSERT_TRUE(RunTasks(*backend, with.Tasks(*backend)).ok());
    ASSERT_TRUE(RunTasks(*backend, without.Tasks(*backend)).ok());
    EXPECT_EQ(without.Check(), "");
    for (size_t i = 0; i < with.problems().size(); ++i) {
      // Bits, as NaN is not equal to itself.
      EXPECT_EQ(with.OutputBits(i, CaseMemory::Which::kO),
                without.OutputBits(i, CaseMemory::Which::kO));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, OneBackend, ::testing::ValuesIn(AvailableBackends()),
                         [](const auto& info) { return TestName(info.param); });

TEST(Table, NamesAreUnique) {
  std::set<std::string> names;
  for (const CaseGroup& group : CaseGroups()) {
    EXPECT_EQ(TestName(group.name), group.name);
    for (const Case& c : group.cases) EXPECT_TRUE(names.insert(c.name).second) << c.name;
  }
}

TEST(Table, EveryCaseIsValid) {
  for (const CaseGroup& group : CaseGroups()) {
    for (const Case& c : group.cases) {
      for (const AttentionProblem& p : ProblemsOf(c)) EXPECT_TRUE(Validate(p).ok()) << c.name;
    }
  }
}

}  // namespace
}  // namespace attnd::testing
