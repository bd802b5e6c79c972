// What the CPU backends promise beyond conformance: conversions of every half, threads, workspace.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "kernels/reference/reference.h"
#include "tests/cases/run.h"

namespace attnd::testing {
namespace {

using kernels::AttentionProblem;
using kernels::AttentionTask;
using kernels::Backend;
using kernels::DType;

std::vector<std::string> CpuBackends() {
  std::vector<std::string> names;
  for (const std::string& name : AvailableBackends()) {
    if (name.substr(0, 4) == "cpu_") names.push_back(name);
  }
  return names;
}

class CpuBackend : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, CpuBackend, ::testing::ValuesIn(CpuBackends()),
                         [](const auto& info) { return info.param; });

AttentionProblem Problem(DType dtype, int64_t heads, int64_t q_len, int64_t kv_len,
                         int64_t head_dim) {
  AttentionProblem p;
  p.dtype = dtype;
  p.batch = 1;
  p.q_heads = p.kv_heads = heads;
  p.q_len = q_len;
  p.kv_len = kv_len;
  p.head_dim = head_dim;
  p.scale = kernels::DefaultScale(head_dim);
  return p;
}

// Dense BHSD.
AttentionTask Task(const Backend& backend, const AttentionProblem& p, const void* q, const void* k,
                   const void* v, void* o) {
  AttentionTask task;
  task.problem = p;
  task.plan = backend.Plan(p);
  task.args.q = q;
  task.args.k = k;
  task.args.v = v;
  task.args.o = o;
  task.args.q_strides = task.args.o_strides = kernels::BHSD(p.q_heads, p.q_len, p.head_dim);
  task.args.k_strides = task.args.v_strides = kernels::BHSD(p.kv_heads, p.kv_len, p.head_dim);
  return task;
}

// With one key, O is V whatever Q and K are: every bit pattern passes through both conversions.
TEST_P(CpuBackend, EveryHalfSurvivesLoadAndStore) {
  constexpr int64_t kHeadDim = 256, kHeads = 65536 / kHeadDim;
  const auto backend = MakeBackend(GetParam(), 2);
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<uint16_t> q(65536, 0), v(65536), o(65536);
    for (int i = 0; i < 65536; ++i) v[i] = static_cast<uint16_t>(i);
    const AttentionProblem p = Problem(dtype, kHeads, 1, 1, kHeadDim);
    const AttentionTask task = Task(*backend, p, q.data(), q.data(), v.data(), o.data());
    ASSERT_TRUE(RunTasks(*backend, {&task, 1}).ok());
    for (int i = 0; i < 65536; ++i) {
      const float in = kernels::LoadElement(v.data(), i, dtype);
      const float out = kernels::LoadElement(o.data(), i, dtype);
      if (std::isnan(in)) {
        ASSERT_TRUE(std::isnan(out)) << i;
      } else {  // -0 may come back as 0
        ASSERT_EQ(out, in) << DTypeName(dtype) << " " << i;
      }
    }
  }
}

uint16_t Half(float value, DType dtype) {
  return dtype == DType::kF16 ? kernels::FloatToF16(value) : kernels::FloatToBF16(value);
}

float Rounded(float value, DType dtype) {
  return dtype == DType::kF16 ? kernels::F16ToFloat(kernels::FloatToF16(value))
                              : kernels::BF16ToFloat(kernels::FloatToBF16(value));
}

// Instructions that multiply bf16 take subnormal numbers for 0, those of fp32 do not: it was really
// the backend's own kernel that ran. O is the mean of eight equal keys: few_keys.h takes fewer.
TEST_P(CpuBackend, SubnormalBF16CountsWhereProductsAreInFp32) {
  const bool multiplies_bf16 = GetParam() == "cpu_amx" || GetParam() == "cpu_avx512_bf16";
  const auto backend = MakeBackend(GetParam(), 1);
  const std::vector<uint16_t> zeros(64, 0), v(64, 0x0040);
  std::vector<uint16_t> o(16, 0xffff);
  const AttentionProblem p = Problem(DType::kBF16, 1, 2, 8, 8);
  const AttentionTask task = Task(*backend, p, zeros.data(), zeros.data(), v.data(), o.data());
  ASSERT_TRUE(RunTasks(*backend, {&task, 1}).ok());
  EXPECT_EQ(o, std::vector<uint16_t>(16, multiplies_bf16 ? 0 : 0x0040));
}

std::vector<float> Waves(int64_t count, float frequency) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = std::sin(frequency * static_cast<float>(i));
  return values;
}

std::vector<uint16_t> Halves(int64_t count, float frequency, DType dtype) {
  std::vector<uint16_t> values;
  for (float value : Waves(count, frequency)) values.push_back(Half(value, dtype));
  return values;
}

// Two keys of equal weight: O is the mean, computed in fp32 and rounded once, as dtype.h rounds.
TEST_P(CpuBackend, StoresRoundAsTheScalarConversions) {
  constexpr int64_t kHeadDim = 256, kHeads = 64;
  const auto backend = MakeBackend(GetParam(), 1);
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const int64_t count = kHeads * kHeadDim;
    std::vector<uint16_t> q(count, 0), k(2 * count, 0), v(2 * count), o(count);
    uint32_t state = 1;
    for (uint16_t& bits : v)
      bits = static_cast<uint16_t>((state = state * 1664525 + 1013904223) >> 16);
    const AttentionProblem p = Problem(dtype, kHeads, 1, 2, kHeadDim);
    const AttentionTask task = Task(*backend, p, q.data(), k.data(), v.data(), o.data());
    ASSERT_TRUE(RunTasks(*backend, {&task, 1}).ok());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t first = i / kHeadDim * 2 * kHeadDim + i % kHeadDim;
      const float sum = kernels::LoadElement(v.data(), first, dtype) +
                        kernels::LoadElement(v.data(), first + kHeadDim, dtype);
      const float want = Rounded(sum / 2, dtype);
      const float got = kernels::LoadElement(o.data(), i, dtype);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got)) << i;
      } else {
        ASSERT_EQ(got, want) << DTypeName(dtype) << " " << sum / 2;
      }
    }
  }
}

// One element of the first head.
struct Element {
  char tensor;
  int64_t row;
  int64_t column;
  float value;
};

// Puts the elements into a problem of two heads, and compares all of O with fp64: the numbers, and
// which are infinite or NaN.
void CheckElements(Backend& backend, AttentionProblem p, const std::vector<Element>& elements) {
  std::vector<uint16_t> q = Halves(p.q_heads * p.q_len * p.head_dim, 0.7f, p.dtype);
  std::vector<uint16_t> k = Halves(p.kv_heads * p.kv_len * p.head_dim, 1.1f, p.dtype);
  std::vector<uint16_t> v = Halves(p.kv_heads * p.kv_len * p.head_dim, 0.3f, p.dtype);
  for (const Element& e : elements) {
    std::vector<uint16_t>& tensor = e.tensor == 'q' ? q : e.tensor == 'k' ? k : v;
    tensor[e.row * p.head_dim + e.column] = Half(e.value, p.dtype);
  }
  std::vector<uint16_t> o(q.size());
  const AttentionTask task = Task(backend, p, q.data(), k.data(), v.data(), o.data());
  ASSERT_TRUE(RunTasks(backend, {&task, 1}).ok());
  std::vector<double> want(o.size());
  ReferenceAttention(p, task.args, want.data(), nullptr);
  size_t special = 0;
  for (size_t i = 0; i < o.size(); ++i) {
    const double got = kernels::LoadElement(o.data(), static_cast<int64_t>(i), p.dtype);
    if (std::isfinite(want[i])) {
      ASSERT_NEAR(got, want[i], 0.02) << ToString(p) << " element " << i;
      continue;
    }
    ++special;
    ASSERT_TRUE(got == want[i] || (std::isnan(got) && std::isnan(want[i])))
        << ToString(p) << " element " << i << ": " << got << ", not " << want[i];
  }
  EXPECT_GT(special, 0u);
  EXPECT_LE(special, o.size() / 2);  // nothing of the second head
}

// With and without a mask, in the last keys and elements of an odd number, too.
TEST_P(CpuBackend, InfiniteAndNaNHalvesShowWhereFp64ShowsThem) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const auto backend = MakeBackend(GetParam(), 2);
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (int64_t head_dim : {7, 65, 128}) {
      const int64_t last = head_dim - 1;
      for (bool causal : {false, true}) {
        AttentionProblem p = Problem(dtype, 2, 150, 201, head_dim);
        if (causal) p.mask.causal.alignment = kernels::Causal::kBottomRight;
        CheckElements(*backend, p,
                      {{'v', 0, 0, -kInf},
                       {'v', 100, 1, kNaN},
                       {'v', 120, 2, kInf},
                       {'v', 131, 3, -kInf},
                       {'v', 170, 2, -kInf},
                       {'v', 200, last, kInf}});
        CheckElements(*backend, p,
                      {{'q', 20, 3, kInf},
                       {'q', 21, last, kNaN},
                       {'k', 60, 5, -kInf},
                       {'k', 190, 5, kInf},
                       {'k', 195, last, -kInf},
                       {'k', 200, 4, kNaN}});
      }
      const AttentionProblem few_keys = Problem(dtype, 2, 150, 4, head_dim);
      CheckElements(
          *backend, few_keys,
          {{'v', 0, 0, -kInf}, {'v', 1, 1, kNaN}, {'v', 2, 0, kInf}, {'v', 3, last, kInf}});
      CheckElements(*backend, few_keys, {{'q', 20, 3, kInf}, {'q', 21, last, kNaN}});
      CheckElements(*backend, few_keys, {{'k', 1, 5, -kInf}, {'k', 3, last, kInf}});
    }
  }
}

// Alone on one thread, and among 64 tasks of other shapes on 1, 2 and 5 threads: the same bits.
TEST_P(CpuBackend, BitsAreTheSameAloneAndAmong64Tasks) {
  struct Owned {
    AttentionProblem problem;
    std::vector<float> q, k, v, alone, o;
  };
  std::vector<Owned> owned;
  const auto single = MakeBackend(GetParam(), 1);
  for (int64_t i = 0; i < 64; ++i) {
    AttentionProblem p =
        Problem(DType::kF32, 1 + i % 3, 1 + i * 37 % 300, 1 + i * 53 % 290, 1 + i * 29 % 130);
    if (i % 2 == 1) p.mask.causal.alignment = kernels::Causal::kBottomRight;
    if (i % 4 == 2) p.mask.window = {i, 3};
    if (i % 5 == 3) p.softcap = 2;
    const int64_t q_count = p.q_heads * p.q_len * p.head_dim;
    const int64_t kv_count = p.kv_heads * p.kv_len * p.head_dim;
    owned.push_back({p, Waves(q_count, 0.7f), Waves(kv_count, 1.1f), Waves(kv_count, 0.3f),
                     std::vector<float>(q_count), std::vector<float>(q_count)});
    Owned& last = owned.back();
    const AttentionTask task =
        Task(*single, p, last.q.data(), last.k.data(), last.v.data(), last.alone.data());
    ASSERT_TRUE(RunTasks(*single, {&task, 1}).ok());
  }
  for (int threads : {1, 2, 5}) {
    const auto backend = MakeBackend(GetParam(), threads);
    std::vector<AttentionTask> tasks;
    for (Owned& t : owned) {
      t.o.assign(t.o.size(), -1);
      tasks.push_back(Task(*backend, t.problem, t.q.data(), t.k.data(), t.v.data(), t.o.data()));
    }
    ASSERT_TRUE(RunTasks(*backend, tasks).ok());
    for (const Owned& t : owned) {
      for (size_t i = 0; i < t.o.size(); ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(t.o[i]), std::bit_cast<uint32_t>(t.alone[i]))
            << ToString(t.problem) << " element " << i << " with " << threads << " threads";
      }
    }
  }
}

// Scratch is per thread, whatever the length.
TEST_P(CpuBackend, WorkspaceDoesNotGrowWithLength) {
  for (int threads : {1, 2}) {
    const auto backend = MakeBackend(GetParam(), threads);
    const auto workspace_bytes = [&](int64_t heads, int64_t len) {
      const AttentionProblem p = Problem(DType::kBF16, heads, len, len, 64);
      const AttentionTask task = Task(*backend, p, nullptr, nullptr, nullptr, nullptr);
      return backend->WorkspaceBytes({&task, 1});
    };
    EXPECT_EQ(workspace_bytes(8, 2048), workspace_bytes(8, 1 << 20));
    EXPECT_EQ(workspace_bytes(8, 2048), workspace_bytes(100000, 2048));
    EXPECT_LE(workspace_bytes(8, 2048), threads * (512 << 10));
    // A small problem stays on the caller's thread, and takes one thread's scratch.
    EXPECT_LE(workspace_bytes(1, 16), workspace_bytes(8, 2048) / threads);
  }
}

TEST_P(CpuBackend, AnEmptyRunTakesNothing) {
  const auto backend = MakeBackend(GetParam(), 2);
  EXPECT_EQ(backend->WorkspaceBytes({}), 0);
  EXPECT_TRUE(backend->Run({}, nullptr, nullptr).ok());
  const AttentionProblem p = Problem(DType::kF32, 0, 4, 4, 8);
  const AttentionTask task = Task(*backend, p, nullptr, nullptr, nullptr, nullptr);
  EXPECT_EQ(backend->WorkspaceBytes({&task, 1}), 0);
  EXPECT_TRUE(backend->Run({&task, 1}, nullptr, nullptr).ok());
}

}  // namespace
}  // namespace attnd::testing
