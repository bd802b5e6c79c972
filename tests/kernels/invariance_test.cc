// Batch invariance: a row's bits depend on its own sequence, head and mask, and on nothing else.
// Every comparison here is of bits.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/registry.h"
#include "tests/cases/memory.h"
#include "tests/cases/run.h"
#include "tests/cases/table.h"
#include "tests/cases/values.h"
#include "tests/kernels/check.h"

namespace attnd::testing {
namespace {

using kernels::AttentionTask;
using kernels::Backend;
using kernels::DType;

// The table's random mixtures and packed batches, 64 cases of every dtype, family and layout.
std::vector<Case> ManyCases() {
  constexpr size_t kCount = 64;
  std::vector<Case> cases;
  for (const CaseGroup& group : CaseGroups()) {
    if (group.name != "mixture" && group.name != "layout") continue;
    cases.insert(cases.end(), group.cases.begin(), group.cases.end());
  }
  if (cases.size() > kCount) cases.erase(cases.begin(), cases.end() - kCount);
  return cases;
}

std::vector<Case> PackedCases() {
  std::vector<Case> cases;
  for (const CaseGroup& group : CaseGroups()) {
    for (const Case& c : group.cases) {
      if (c.layout == Layout::kTHD) cases.push_back(c);
    }
  }
  return cases;
}

using Memories = std::vector<std::unique_ptr<CaseMemory>>;

Memories LayOut(const std::vector<Case>& cases, Placement placement, EdgePoison edge) {
  Memories memories;
  for (const Case& c : cases) {
    memories.push_back(std::make_unique<CaseMemory>(
        c, MemoryOptions{.seed = 5, .placement = placement, .edge = edge}));
  }
  return memories;
}

std::vector<AttentionTask> AllTasks(const Memories& memories, const Backend& backend) {
  std::vector<AttentionTask> tasks;
  for (const auto& memory : memories) {
    const auto more = memory->Tasks(backend);
    tasks.insert(tasks.end(), more.begin(), more.end());
  }
  return tasks;
}

void ExpectSameBits(const CaseMemory& a, const CaseMemory& b) {
  ASSERT_EQ(a.problems().size(), b.problems().size());
  for (size_t i = 0; i < a.problems().size(); ++i) {
    EXPECT_TRUE(a.OutputBits(i) == b.OutputBits(i)) << ToString(a.problems()[i]);
  }
}

// One batch and one KV head, with its group of query heads.
AttentionTask PieceOf(const AttentionTask& task, int64_t batch, int64_t kv_head) {
  AttentionTask piece = task;
  const int64_t group = task.problem.group();
  const int64_t q_head = kv_head * group;
  const int64_t size_bytes = SizeBytes(task.problem.dtype);
  const auto at = [&](const void* tensor, const kernels::Strides& strides, int64_t head) {
    return static_cast<const char*>(tensor) +
           (batch * strides.batch + head * strides.head) * size_bytes;
  };
  piece.problem.batch = 1;
  piece.problem.kv_heads = 1;
  piece.problem.q_heads = group;
  kernels::AttentionArgs& args = piece.args;
  args.q = at(args.q, args.q_strides, q_head);
  args.k = at(args.k, args.k_strides, kv_head);
  args.v = at(args.v, args.v_strides, kv_head);
  args.o = const_cast<char*>(at(args.o, args.o_strides, q_head));
  args.lse += batch * args.lse_batch_stride + q_head * args.lse_head_stride;
  if (args.alibi_slopes != nullptr) args.alibi_slopes += q_head;
  return piece;
}

class Invariance : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> Make(int threads) { return MakeBackend(GetParam(), threads); }
};

TEST_P(Invariance, AloneEqualsBeside63Others) {
  const auto backend = Make(2);
  const std::vector<Case> cases = ManyCases();
  ASSERT_EQ(cases.size(), 64u);
  for (EdgePoison edge : {EdgePoison::kNone, EdgePoison::kValues}) {
    const Memories together = LayOut(cases, Placement::kOddLarge, edge);
    const Memories alone = LayOut(cases, Placement::kOddLarge, edge);
    ASSERT_TRUE(RunTasks(*backend, AllTasks(together, *backend)).ok());
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(cases[i].name);
      for (const AttentionTask& task : alone[i]->Tasks(*backend)) {
        ASSERT_TRUE(RunTasks(*backend, {&task, 1}).ok());
      }
      ExpectSameBits(*together[i], *alone[i]);
    }
  }
}

TEST_P(Invariance, ThreadsDoNotMatter) {
  const std::vector<Case> cases = ManyCases();
  Memories one = LayOut(cases, Placement::kSnug, EdgePoison::kNone);
  const auto single = Make(1);
  ASSERT_TRUE(RunTasks(*single, AllTasks(one, *single)).ok());
  for (int threads : {2, 5}) {
    const auto backend = Make(threads);
    Memories many = LayOut(cases, Placement::kSnug, EdgePoison::kNone);
    ASSERT_TRUE(RunTasks(*backend, AllTasks(many, *backend)).ok());
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(cases[i].name + ", threads " + std::to_string(threads));
      ExpectSameBits(*one[i], *many[i]);
    }
  }
}

TEST_P(Invariance, AlignmentAndStridesDoNotMatter) {
  const auto backend = Make(2);
  for (const Case& c : ManyCases()) {
    SCOPED_TRACE(c.name);
    CaseMemory snug(c, {.placement = Placement::kSnug});
    ASSERT_TRUE(RunTasks(*backend, snug.Tasks(*backend)).ok());
    for (Placement placement : {Placement::kOddNaN, Placement::kOddLarge}) {
      CaseMemory odd(c, {.placement = placement});
      ASSERT_TRUE(RunTasks(*backend, odd.Tasks(*backend)).ok());
      ExpectSameBits(snug, odd);
    }
  }
}

TEST_P(Invariance, LayoutsDoNotMatter) {
  const auto backend = Make(2);
  for (const Case& c : ManyCases()) {
    if (c.layout == Layout::kTHD) continue;
    SCOPED_TRACE(c.name);
    Case bhsd = c;
    bhsd.layout = Layout::kBHSD;
    Case bshd = c;
    bshd.layout = Layout::kBSHD;
    CaseMemory a(bhsd, {});
    CaseMemory b(bshd, {});
    ASSERT_TRUE(RunTasks(*backend, a.Tasks(*backend)).ok());
    ASSERT_TRUE(RunTasks(*backend, b.Tasks(*backend)).ok());
    ExpectSameBits(a, b);
  }
}

TEST_P(Invariance, PackedEqualsDense) {
  const auto backend = Make(2);
  ASSERT_FALSE(PackedCases().empty());
  for (const Case& c : PackedCases()) {
    CaseMemory packed(c, {});
    ASSERT_TRUE(RunTasks(*backend, packed.Tasks(*backend)).ok());
    for (size_t i = 0; i < c.lens.size(); ++i) {
      SCOPED_TRACE(c.name + ", sequence " + std::to_string(i));
      Case dense_case = c;
      dense_case.layout = Layout::kBHSD;
      dense_case.batch = 1;
      dense_case.lens = {c.lens[i]};
      CaseMemory dense(dense_case, {});
      // The packed sequence's numbers, bit for bit.
      const Values values = packed.ReadInputs(i);
      dense.q().SetRegion(0, values.q);
      dense.k().SetRegion(0, values.k);
      dense.v().SetRegion(0, values.v);
      dense.FreezeInputs();
      ASSERT_TRUE(RunTasks(*backend, dense.Tasks(*backend)).ok());
      EXPECT_TRUE(packed.OutputBits(i) == dense.OutputBits(0));
    }
  }
}

// Every (batch, KV head) of a problem, computed as a problem of its own.
TEST_P(Invariance, BatchAndNumberOfHeadsDoNotMatter) {
  const auto backend = Make(2);
  for (const Case& c : ManyCases()) {
    if (c.layout == Layout::kTHD) continue;
    SCOPED_TRACE(c.name);
    CaseMemory whole(c, {});
    CaseMemory pieces(c, {});
    ASSERT_TRUE(RunTasks(*backend, whole.Tasks(*backend)).ok());
    for (const AttentionTask& task : pieces.Tasks(*backend)) {
      for (int64_t batch = 0; batch < task.problem.batch; ++batch) {
        for (int64_t kv_head = 0; kv_head < task.problem.kv_heads; ++kv_head) {
          const AttentionTask piece = PieceOf(task, batch, kv_head);
          ASSERT_TRUE(RunTasks(*backend, {&piece, 1}).ok());
        }
      }
    }
    ExpectSameBits(whole, pieces);
  }
}

// Keys that no row sees may hold anything: not one bit changes.
TEST_P(Invariance, HiddenNaNLeavesTheBits) {
  const auto backend = Make(2);
  for (const Case& c : ManyCases()) {
    SCOPED_TRACE(c.name);
    CaseMemory clean(c, {.poison_hidden_keys = false});
    CaseMemory poisoned(c, {.poison_hidden_keys = true});
    ASSERT_TRUE(RunTasks(*backend, clean.Tasks(*backend)).ok());
    ASSERT_TRUE(RunTasks(*backend, poisoned.Tasks(*backend)).ok());
    ExpectSameBits(clean, poisoned);
  }
}

// NaN in a V row that some rows of a tile see: the others keep every bit, however the kernel keeps
// it from them.
TEST_P(Invariance, NaNThatOtherRowsSeeLeavesTheBits) {
  const auto backend = Make(2);
  for (const Case& c : ManyCases()) {
    SCOPED_TRACE(c.name);
    CaseMemory clean(c, {});
    CaseMemory poisoned(c, {.edge = EdgePoison::kValues});
    ASSERT_TRUE(RunTasks(*backend, clean.Tasks(*backend)).ok());
    ASSERT_TRUE(RunTasks(*backend, poisoned.Tasks(*backend)).ok());
    for (size_t i = 0; i < clean.problems().size(); ++i) {
      const std::vector<double> want = clean.Output(i);
      const std::vector<double> got = poisoned.Output(i);
      for (size_t element = 0; element < want.size(); ++element) {
        if (std::isnan(got[element])) continue;
        ASSERT_EQ(got[element], want[element]) << element;
      }
      EXPECT_EQ(clean.Lse(i), poisoned.Lse(i));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Invariance, ::testing::ValuesIn(AvailableBackends()),
                         [](const auto& info) { return TestName(info.param); });

}  // namespace
}  // namespace attnd::testing
