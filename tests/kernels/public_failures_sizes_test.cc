// Ways in which other attention kernels were publicly seen to fail, continued: sizes, offsets,
// heads and repetition.
#include <sys/mman.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference.h"
#include "tests/cases/memory.h"
#include "tests/cases/run.h"
#include "tests/cases/table.h"
#include "tests/cases/values.h"
#include "tests/kernels/check.h"

namespace attnd::testing {
namespace {

using kernels::AttentionArgs;
using kernels::AttentionProblem;
using kernels::AttentionTask;
using kernels::DType;
using kernels::RowId;
using kernels::Strides;

class PublicFailuresOfSize : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    backend_ = MakeBackend(GetParam(), 2);
    ASSERT_NE(backend_, nullptr);
  }

  void Check(Case c, const MemoryOptions& options = {}) {
    CaseGroup group{.name = ::testing::UnitTest::GetInstance()->current_test_info()->name()};
    Add(group, std::move(c));
    CheckCase(*backend_, group.cases[0], options);
  }

  std::unique_ptr<CaseMemory> RunCase(const Case& c, const MemoryOptions& options = {}) {
    auto memory = std::make_unique<CaseMemory>(c, options);
    const absl::Status status = RunTasks(*backend_, memory->Tasks(*backend_));
    EXPECT_TRUE(status.ok()) << status;
    return memory;
  }

  std::unique_ptr<kernels::Backend> backend_;
};

// Address space without memory behind it: pages come when they are touched.
class SparseMemory {
 public:
  explicit SparseMemory(int64_t size_bytes)
      : size_bytes_(static_cast<size_t>(size_bytes)),
        memory_(mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseMemory() {
    if (ok()) munmap(memory_, size_bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  bool ok() const { return memory_ != MAP_FAILED; }
  void* data() { return memory_; }

 private:
  size_t size_bytes_;
  void* memory_;
};

// A row beyond 2^31 elements, hence beyond 2^32 bytes, and heads beyond that.
constexpr Strides kFarStrides = {
    .batch = 0, .head = (int64_t{1} << 32) + 24, .row = (int64_t{1} << 27) + 8};
constexpr int64_t kFarRows = 20;
static_assert(kFarRows * kFarStrides.row > int64_t{1} << 31);

void Scatter(const std::vector<float>& dense, const AttentionProblem& p, int64_t heads, void* far) {
  for (int64_t i = 0; i < heads * kFarRows * p.head_dim; ++i) {
    const int64_t row = i / p.head_dim;
    kernels::StoreElement(
        far, row / kFarRows * kFarStrides.head + row % kFarRows * kFarStrides.row + i % p.head_dim,
        p.dtype, dense[i]);
  }
}

TEST_P(PublicFailuresOfSize, K34_OffsetsPassTwoToThe31) {
  constexpr int64_t kHeads = 2;
  const int64_t far_elems = kHeads * kFarStrides.head;
  constexpr int64_t kLseHeadStride = (int64_t{1} << 31) + 5;
  for (DType dtype : kDTypes) {
    const Case c{.dtype = dtype,
                 .q_heads = kHeads,
                 .kv_heads = kHeads,
                 .lens = {{kFarRows, kFarRows}},
                 .head_dim = 16,
                 .mask = kCausal};
    const auto dense = RunCase(c);
    const AttentionProblem& p = dense->problems()[0];
    SparseMemory q(far_elems * SizeBytes(dtype)), k(far_elems * SizeBytes(dtype)),
        v(far_elems * SizeBytes(dtype)), o(far_elems * SizeBytes(dtype)),
        lse((kLseHeadStride + kFarRows) * 4);
    ASSERT_TRUE(q.ok() && k.ok() && v.ok() && o.ok() && lse.ok());
    const Values values = dense->ReadInputs(0);
    Scatter(values.q, p, kHeads, q.data());
    Scatter(values.k, p, kHeads, k.data());
    Scatter(values.v, p, kHeads, v.data());
    const AttentionTask task{p,
                             backend_->Plan(p),
                             {.q = q.data(),
                              .k = k.data(),
                              .v = v.data(),
                              .o = o.data(),
                              .q_strides = kFarStrides,
                              .k_strides = kFarStrides,
                              .v_strides = kFarStrides,
                              .o_strides = kFarStrides,
                              .lse = static_cast<float*>(lse.data()),
                              .lse_batch_stride = 2 * kLseHeadStride,
                              .lse_head_stride = kLseHeadStride}};
    ASSERT_TRUE(RunTasks(*backend_, {&task, 1}).ok());
    const std::vector<double> want_o = dense->Output(0);
    const std::vector<double> want_lse = dense->Lse(0);
    for (int64_t row = 0; row < kHeads * kFarRows; ++row) {
      const int64_t head = row / kFarRows;
      const int64_t first = head * kFarStrides.head + row % kFarRows * kFarStrides.row;
      for (int64_t d = 0; d < p.head_dim; ++d) {
        ASSERT_EQ(kernels::LoadElement(o.data(), first + d, dtype), want_o[row * p.head_dim + d])
            << DTypeName(dtype) << " row " << row;
      }
      ASSERT_EQ(task.args.lse[head * kLseHeadStride + row % kFarRows], want_lse[row]);
    }
  }
}

// The arithmetic alone, further out than any address space.
TEST(PublicFailuresOfArithmetic, K34_OffsetsAre64BitEverywhere) {
  const Strides strides = kernels::BHSD(64, 1 << 20, 256);
  EXPECT_EQ(strides.batch, int64_t{1} << 34);
  EXPECT_EQ(kernels::BSHD(64, 1 << 20, 256).batch, int64_t{1} << 34);
  // Not null, to which nothing may be added.
  constexpr uintptr_t kBase = 4096;
  const auto* const base = reinterpret_cast<const void*>(kBase);
  const kernels::KvView view = kernels::MakeKvView(base, int64_t{3} << 33, 1 << 20, 4);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(view.base) - kBase, uintptr_t{12} << 33);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(view.Row(1 << 20)) - kBase,
            (uintptr_t{12} << 33) + (uintptr_t{4} << 40));
  const AttentionProblem p{.dtype = DType::kF32,
                           .batch = 1 << 10,
                           .q_heads = 1 << 6,
                           .kv_heads = 1 << 6,
                           .q_len = 1 << 20,
                           .kv_len = 1 << 20,
                           .head_dim = 256,
                           .mask = {},
                           .scale = 1};
  EXPECT_TRUE(Validate(p).ok());
}

// Rows checked one by one against fp64; the problem is too long to compute whole.
void CheckSampledRows(const CaseMemory& memory, DType dtype) {
  const AttentionProblem& p = memory.problems()[0];
  const std::vector<double> o = memory.Output(0);
  const std::vector<double> lse = memory.Lse(0);
  const double bound = dtype == DType::kF32 ? 2e-6 : dtype == DType::kF16 ? 4.5e-4 : 3.5e-3;
  std::vector<double> actual, expected;
  // Around 2^15 and at both ends.
  for (int64_t row : {int64_t{0}, int64_t{1}, p.q_len / 2, int64_t{32767}, int64_t{32768},
                      int64_t{32769}, p.q_len - 1}) {
    std::vector<double> row_o(p.head_dim);
    double row_lse = 0;
    const RowId id{0, 0, row};
    ReferenceRows(p, memory.args()[0], {&id, 1}, row_o.data(), &row_lse);
    EXPECT_NEAR(lse[row], row_lse, LseBound(row_lse)) << "row " << row;
    expected.insert(expected.end(), row_o.begin(), row_o.end());
    actual.insert(actual.end(), o.begin() + row * p.head_dim, o.begin() + (row + 1) * p.head_dim);
  }
  EXPECT_LE(kernels::RelativeError(actual, expected), bound) << ToString(p);
}

TEST_P(PublicFailuresOfSize, K37_LengthsPassSixteenBits) {
  constexpr int64_t kLength = 33728;
  const kernels::MaskSpec window = {.causal = {}, .window = {70, 10}};
  // Long both ways: within a window on every backend, whole on those that are quick.
  Case c{.dtype = DType::kF32, .lens = {{kLength, kLength}}, .head_dim = 8, .mask = window};
  CheckSampledRows(*RunCase(c), c.dtype);
  if (GetParam() != "reference") {
    c.mask = kCausal;
    CheckSampledRows(*RunCase(c), c.dtype);
  }
  // Past 2^16, one way at a time.
  for (DType dtype : kDTypes) {
    Check({.dtype = dtype, .lens = {{70000, 3}}, .head_dim = 4});
    Check({.dtype = dtype, .lens = {{2, 70000}}, .head_dim = 4, .mask = kCausal});
  }
}

TEST_P(PublicFailuresOfSize, K37_BatchTimesHeadsPassesSixteenBits) {
  const Lens lens{1, 3};
  Check({.dtype = DType::kF32,
         .batch = 257,
         .q_heads = 256,
         .kv_heads = 256,
         .lens = {lens},
         .head_dim = 4});
  Check({.dtype = DType::kF16, .batch = 70000, .lens = {lens}, .head_dim = 4});
  Check(
      {.dtype = DType::kBF16, .q_heads = 70000, .kv_heads = 70000, .lens = {lens}, .head_dim = 4});
  Check({.dtype = DType::kF32, .q_heads = 70000, .kv_heads = 1, .lens = {lens}, .head_dim = 4});
}

// A problem has one kv_len, so that a longer V cannot be said to a kernel (decoding refuses it).
// What a kernel must not do is to read V's rows beyond it.
TEST_P(PublicFailuresOfSize, K40_ValuesBeyondTheKeysAreNotRead) {
  for (DType dtype : kDTypes) {
    const Case c{.dtype = dtype, .q_heads = 2, .kv_heads = 2, .lens = {{30, 40}}};
    const auto want = RunCase(c);
    CaseMemory memory(c, {});
    const Case longer_case{.dtype = dtype, .q_heads = 2, .kv_heads = 2, .lens = {{30, 55}}};
    CaseMemory longer(longer_case, {});
    longer.v().SetRegion(0, std::numeric_limits<float>::quiet_NaN());
    const std::vector<float> v = memory.ReadInputs(0).v;
    for (int64_t i = 0; i < static_cast<int64_t>(v.size()); ++i) {
      longer.v().Set(0, 0, i / (40 * 64), i / 64 % 40, i % 64, v[i]);
    }
    std::vector<AttentionTask> tasks = memory.Tasks(*backend_);
    tasks[0].args.v = longer.args()[0].v;
    tasks[0].args.v_strides = longer.args()[0].v_strides;
    ASSERT_TRUE(RunTasks(*backend_, tasks).ok());
    EXPECT_TRUE(memory.OutputBits(0) == want->OutputBits(0));
  }
}

// V holds its head's number, so that O tells which head was read.
TEST_P(PublicFailuresOfSize, K41_AQueryHeadReadsTheKvHeadOfItsGroup) {
  const struct { int64_t q_heads, kv_heads; } all[] = {{28, 4}, {14, 2}, {6, 3}, {8, 8}, {9, 1}};
  for (DType dtype : kDTypes) {
    for (const auto& [q_heads, kv_heads] : all) {
      for (int64_t q_len : {1, 20}) {
        const Case c{
            .dtype = dtype, .q_heads = q_heads, .kv_heads = kv_heads, .lens = {{q_len, 30}}};
        CaseMemory memory(c, {});
        for (int64_t i = 0; i < kv_heads * 30 * 64; ++i) {
          memory.v().Set(0, 0, i / (30 * 64), i / 64 % 30, i % 64,
                         static_cast<float>(i / (30 * 64)));
        }
        memory.FreezeInputs();
        ASSERT_TRUE(RunTasks(*backend_, memory.Tasks(*backend_)).ok());
        const std::vector<double> o = memory.Output(0);
        for (size_t i = 0; i < o.size(); ++i) {
          const auto q_head = static_cast<int64_t>(i) / (q_len * 64);
          const auto kv_head = static_cast<double>(q_head / (q_heads / kv_heads));
          // A mean of equal numbers, whose weights were rounded to the dtype.
          ASSERT_NEAR(o[i], kv_head, 0.01 * (kv_head + 1)) << "head " << q_head;
        }
      }
    }
  }
}

TEST(PublicFailuresOfArithmetic, K42_HeadsThatDoNotDivideAreRefused) {
  for (const auto& [q_heads, kv_heads] :
       std::vector<std::pair<int64_t, int64_t>>{{33, 2}, {2, 4}, {7, 3}, {1, 0}}) {
    const AttentionProblem p{.batch = 1,
                             .q_heads = q_heads,
                             .kv_heads = kv_heads,
                             .q_len = 1,
                             .kv_len = 1,
                             .head_dim = 8,
                             .mask = {},
                             .scale = 1};
    const absl::Status status = Validate(p);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    for (int64_t heads : {q_heads, kv_heads}) {
      EXPECT_NE(std::string(status.message()).find(absl::StrCat(heads)), std::string::npos)
          << status;
    }
  }
}

// Edges at which tiles usually end; the edges of this backend's own plans are in conformance_test.
TEST_P(PublicFailuresOfSize, K46_LengthsAroundTileEdges) {
  for (int64_t tile : {16, 32, 64, 128}) {
    for (DType dtype : kDTypes) {
      for (Case c : TileEdgeCases(dtype, kCausal, 32, tile, tile)) {
        Check(std::move(c), {.seed = 30, .placement = Placement::kOddNaN});
      }
    }
  }
}

TEST_P(PublicFailuresOfSize, K56_AloneAndBesideOthersGivesTheSameBits) {
  for (DType dtype : kDTypes) {
    for (const Lens& lens : {Lens{1, 500}, Lens{60, 60}, Lens{130, 300}}) {
      const Case c{.dtype = dtype, .q_heads = 4, .kv_heads = 2, .lens = {lens}, .mask = kCausal};
      const auto alone = RunCase(c);
      CaseMemory beside(c, {});
      std::vector<std::unique_ptr<CaseMemory>> others;
      std::vector<AttentionTask> tasks;
      for (int64_t i = 0; i < 63; ++i) {
        if (i == 31) tasks.push_back(beside.Tasks(*backend_)[0]);
        const Case other{
            .dtype = kDTypes[i % 3], .lens = {{1 + i * 3, 1 + i * 5}}, .mask = kCausal};
        others.push_back(std::make_unique<CaseMemory>(other, MemoryOptions{}));
        tasks.push_back(others.back()->Tasks(*backend_)[0]);
      }
      ASSERT_EQ(tasks.size(), 64u);
      ASSERT_TRUE(RunTasks(*backend_, tasks).ok());
      EXPECT_TRUE(alone->OutputBits(0) == beside.OutputBits(0)) << ToString(tasks[31].problem);
    }
  }
}

TEST_P(PublicFailuresOfSize, K58_AThousandRepeatsGiveTheSameBits) {
  for (DType dtype : kDTypes) {
    const Case c{.dtype = dtype, .q_heads = 4, .kv_heads = 2, .lens = {{17, 65}}, .mask = kCausal};
    CaseMemory memory(c, {});
    const std::vector<AttentionTask> tasks = memory.Tasks(*backend_);
    ASSERT_TRUE(RunTasks(*backend_, tasks).ok());
    const auto first = memory.OutputBits(0);
    for (int i = 1; i < 1000; ++i) {
      memory.ResetOutputs();
      ASSERT_TRUE(RunTasks(*backend_, tasks).ok());
      ASSERT_TRUE(memory.OutputBits(0) == first) << DTypeName(dtype) << " repeat " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PublicFailuresOfSize, ::testing::ValuesIn(AvailableBackends()),
                         [](const auto& info) { return TestName(info.param); });

}  // namespace
}  // namespace attnd::testing
