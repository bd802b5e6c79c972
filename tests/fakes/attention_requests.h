// Requests of every layout with random values, as the wire would have decoded them.
#ifndef ATTND_TESTS_FAKES_ATTENTION_REQUESTS_H_
#define ATTND_TESTS_FAKES_ATTENTION_REQUESTS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "kernels/dtype.h"
#include "server/executor/device.h"
#include "server/job.h"
#include "server/memory/buffer_pool.h"

namespace attnd::fakes {

enum class Layout { kBHSD, kBSHD, kPacked };

struct AttentionSpec {
  kernels::DType dtype = kernels::DType::kF32;
  Layout layout = Layout::kBHSD;
  int64_t batch = 1;  // packed: this many sequences, of q_len, q_len + 1, ... rows
  int64_t q_heads = 1;
  int64_t kv_heads = 1;
  int64_t q_len = 1;
  int64_t kv_len = 1;
  int64_t head_dim = 64;
  kernels::MaskSpec mask{};
  bool lse = false;
  bool alibi = false;
};

// N(0, 1), from the seed.
inline server::Buffer RandomTensor(server::BufferPool& pool, int64_t elems, kernels::DType dtype,
                                   uint64_t seed) {
  absl::StatusOr<server::Buffer> buffer = pool.Allocate(elems * kernels::SizeBytes(dtype));
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  std::minstd_rand random(static_cast<uint32_t>(seed));
  std::normal_distribution<float> normal;
  // Large tensors repeat what the first 64 Ki elements have: drawing takes longer than computing.
  constexpr int64_t kDrawn = 1 << 16;
  for (int64_t i = 0; i < std::min(elems, kDrawn); ++i) {
    kernels::StoreElement(buffer->data(), i, dtype, normal(random));
  }
  for (int64_t i = kDrawn; i < elems; i += kDrawn) {
    std::copy_n(buffer->data(), std::min(kDrawn, elems - i) * kernels::SizeBytes(dtype),
                buffer->data() + i * kernels::SizeBytes(dtype));
  }
  return *std::move(buffer);
}

inline std::unique_ptr<server::Request> MakeRequest(server::BufferPool& pool,
                                                    const AttentionSpec& spec, uint64_t seed = 1) {
  auto request = std::make_unique<server::Request>();
  const bool packed = spec.layout == Layout::kPacked;
  const int64_t d = spec.head_dim;
  int64_t q_rows = 0;
  int64_t kv_rows = 0;
  for (int64_t s = 0; s < spec.batch; ++s) {
    q_rows += spec.q_len + (packed ? s : 0);
    kv_rows += spec.kv_len + (packed ? s : 0);
  }
  const auto strides = [&](int64_t heads, int64_t len) {
    return spec.layout == Layout::kBHSD ? kernels::BHSD(heads, len, d)
                                        : kernels::BSHD(heads, len, d);
  };
  int64_t q_row = 0;
  int64_t kv_row = 0;
  for (int64_t s = 0; s < (packed ? spec.batch : 1); ++s) {
    server::ProblemSlot slot;
    slot.problem = {.dtype = spec.dtype,
                    .batch = packed ? 1 : spec.batch,
                    .q_heads = spec.q_heads,
                    .kv_heads = spec.kv_heads,
                    .q_len = spec.q_len + s,
                    .kv_len = spec.kv_len + s,
                    .head_dim = d,
                    .mask = spec.mask,
                    .scale = kernels::DefaultScale(d),
                    .alibi = spec.alibi};
    slot.q_offset_elems = slot.o_offset_elems = q_row * spec.q_heads * d;
    slot.k_offset_elems = slot.v_offset_elems = kv_row * spec.kv_heads * d;
    slot.q_strides = slot.o_strides = strides(spec.q_heads, slot.problem.q_len);
    slot.k_strides = slot.v_strides = strides(spec.kv_heads, slot.problem.kv_len);
    slot.lse_offset_elems = packed ? q_row : 0;
    slot.lse_head_stride = packed ? q_rows : spec.q_len;
    slot.lse_batch_stride = spec.q_heads * slot.lse_head_stride;
    q_row += slot.problem.q_len;
    kv_row += slot.problem.kv_len;
    request->problems.push_back(slot);
  }
  request->q = RandomTensor(pool, q_rows * spec.q_heads * d, spec.dtype, seed);
  request->k = RandomTensor(pool, kv_rows * spec.kv_heads * d, spec.dtype, seed + 1);
  request->v = RandomTensor(pool, kv_rows * spec.kv_heads * d, spec.dtype, seed + 2);
  for (int64_t h = 0; spec.alibi && h < spec.q_heads; ++h) {
    request->alibi_slopes.push_back(std::exp2(-static_cast<float>(h + 1)));
  }
  request->output.dtype = spec.dtype;
  request->output.o_bytes = request->q.size_bytes();
  request->output.want_lse = spec.lse;
  request->output.lse_bytes = spec.lse ? q_rows * spec.q_heads * 4 : 0;
  return request;
}

// A job around it, with memory for its answer; nobody waits for its end.
inline server::RunningJob MakeRunning(std::unique_ptr<server::Request> request,
                                      server::BufferPool& pool) {
  server::RunningJob running;
  running.o = *pool.Allocate(request->output.o_bytes);
  running.lse = *pool.Allocate(request->output.lse_bytes);
  running.job = std::make_shared<server::Job>(
      std::move(request),
      [](server::Job&, const absl::StatusOr<server::Answer>&, server::Stage) {});
  return running;
}

}  // namespace attnd::fakes

#endif  // ATTND_TESTS_FAKES_ATTENTION_REQUESTS_H_
