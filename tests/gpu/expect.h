// What tests on a real GPU want of answers and of memory.
#ifndef ATTND_TESTS_GPU_EXPECT_H_
#define ATTND_TESTS_GPU_EXPECT_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "kernels/registry.h"
#include "server/memory/buffer_pool.h"
#include "server/request.h"

namespace attnd::testing {

// O against fp64, in norm; and LSE.
inline void ExpectRight(const server::Request& request, const server::Buffer& got_o,
                        const server::Buffer& got_lse) {
  server::BufferPool pool(int64_t{1} << 30);
  const server::Buffer o = *pool.Allocate(request.output.o_bytes);
  const server::Buffer lse = *pool.Allocate(request.output.lse_bytes);
  const auto backend = std::move(kernels::ChooseBackend("reference", {1})->backend);
  std::vector<kernels::AttentionTask> tasks;
  for (const server::ProblemSlot& slot : request.problems) {
    tasks.push_back(
        {slot.problem, backend->Plan(slot.problem), server::BindToHost(request, slot, o, lse)});
  }
  ASSERT_EQ(backend->WorkspaceBytes(tasks), 0);
  ASSERT_TRUE(backend->Run(tasks, nullptr, nullptr).ok());
  const kernels::DType dtype = request.output.dtype;
  double error = 0;
  double norm = 0;
  for (int64_t i = 0; i < o.size_bytes() / kernels::SizeBytes(dtype); ++i) {
    const double want = kernels::LoadElement(o.data(), i, dtype);
    const double difference = kernels::LoadElement(got_o.data(), i, dtype) - want;
    error += difference * difference;
    norm += want * want;
  }
  // The design's bounds, and what rounding the reference itself to the dtype adds.
  const double bound = dtype == kernels::DType::kF32 ? 2e-6 : 5e-3;
  EXPECT_LE(std::sqrt(error), bound * std::sqrt(norm) + 1e-30);
  for (int64_t i = 0; request.output.want_lse && i < lse.size_bytes() / 4; ++i) {
    const float want = reinterpret_cast<const float*>(lse.data())[i];
    const float have = reinterpret_cast<const float*>(got_lse.data())[i];
    if (std::isinf(want)) {
      ASSERT_EQ(have, want) << i;
    } else {
      ASSERT_NEAR(have, want, 1e-4) << i;
    }
  }
}

// Of this process, now.
inline int64_t RssBytes() {
  long long pages = 0;
  if (std::FILE* const statm = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(statm, "%*s %lld", &pages) != 1) pages = 0;
    std::fclose(statm);
  }
  return pages * 4096;
}

}  // namespace attnd::testing

#endif  // ATTND_TESTS_GPU_EXPECT_H_
