// Batch invariance through the scheduler and the executor: whatever runs beside a request,
// in whichever batch and slices, its answer has the bits that it has alone.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/executor/cpu_device.h"
#include "server/executor/executor.h"
#include "tests/fakes/requests.h"

namespace attnd::server {
namespace {

using kernels::AttentionProblem;

constexpr int kRequests = 10'000;
constexpr int kThreads = 4;

AttentionProblem RandomProblem(std::mt19937& random) {
  const auto one_of = [&](std::vector<int64_t> values) { return values[random() % values.size()]; };
  AttentionProblem problem;
  problem.dtype = static_cast<kernels::DType>(random() % 3);
  problem.batch = one_of({1, 1, 2});
  problem.kv_heads = one_of({1, 2, 3, 4});
  problem.q_heads = problem.kv_heads * one_of({1, 2});
  problem.q_len = one_of({1, 2, 7, 16, 33, 64});
  problem.kv_len = one_of({0, 1, 16, 31, 65, 130});
  problem.head_dim = one_of({8, 16, 64, 72});
  problem.scale = kernels::DefaultScale(problem.head_dim);
  const int64_t mask = one_of({0, 1, 2, 3});
  if (mask == 1) problem.mask.causal.alignment = kernels::Causal::kBottomRight;
  if (mask == 2) problem.mask.window = {5, 3};
  if (mask == 3) problem.softcap = 2;
  return problem;
}

Buffer RandomTensor(BufferPool& pool, int64_t elems, kernels::DType dtype, std::mt19937& random) {
  Buffer buffer = *pool.Allocate(elems * kernels::SizeBytes(dtype));
  for (int64_t i = 0; i < elems; ++i) {
    const auto value = static_cast<float>(static_cast<int32_t>(random()) * 1e-9);
    kernels::StoreElement(buffer.data(), i, dtype, value);
  }
  return buffer;
}

// The same for the same seed.
std::unique_ptr<Request> RandomRequest(BufferPool& pool, uint32_t seed) {
  std::mt19937 random(seed);
  ProblemSlot slot;
  const AttentionProblem& p = slot.problem = RandomProblem(random);
  slot.q_strides = slot.o_strides = kernels::BHSD(p.q_heads, p.q_len, p.head_dim);
  slot.k_strides = slot.v_strides = kernels::BHSD(p.kv_heads, p.kv_len, p.head_dim);
  slot.lse_head_stride = p.q_len;
  slot.lse_batch_stride = p.q_heads * p.q_len;
  auto request = std::make_unique<Request>();
  request->request_id = std::to_string(seed);
  request->priority = static_cast<int>(random() % 10);
  request->q = RandomTensor(pool, p.batch * slot.q_strides.batch, p.dtype, random);
  request->k = RandomTensor(pool, p.batch * slot.k_strides.batch, p.dtype, random);
  request->v = RandomTensor(pool, p.batch * slot.k_strides.batch, p.dtype, random);
  request->output.dtype = p.dtype;
  request->output.o_bytes = request->q.size_bytes();
  request->output.want_lse = true;
  request->output.lse_bytes = p.batch * p.q_heads * p.q_len * int64_t{sizeof(float)};
  request->problems.push_back(slot);
  return request;
}

std::string Bits(const Buffer& o, const Buffer& lse) {
  const auto text = [](const Buffer& buffer) {
    return std::string(reinterpret_cast<const char*>(buffer.data()),
                       static_cast<size_t>(buffer.size_bytes()));
  };
  return text(o) + text(lse);
}

std::string BitsAlone(Device& device, BufferPool& pool, uint32_t seed) {
  RunningBatch batch;
  batch.jobs.emplace_back();
  std::unique_ptr<Request> request = RandomRequest(pool, seed);
  batch.jobs[0].o = *pool.Allocate(request->output.o_bytes);
  batch.jobs[0].lse = *pool.Allocate(request->output.lse_bytes);
  batch.jobs[0].job =
      std::make_shared<Job>(std::move(request), [](Job&, absl::StatusOr<Answer>, Stage) {});
  EXPECT_TRUE(device.Begin(Stage::kRun, batch).ok());
  return Bits(batch.jobs[0].o, batch.jobs[0].lse);
}

// Of each request, by seed.
std::vector<std::string> AllAlone(Device& device, BufferPool& pool) {
  std::vector<std::string> alone;
  alone.reserve(kRequests);
  for (uint32_t seed = 0; seed < kRequests; ++seed) alone.push_back(BitsAlone(device, pool, seed));
  return alone;
}

struct Counts {
  std::atomic<int> ended{0};
  std::atomic<int> wrong{0};
  std::atomic<int> beside_others{0};
  std::atomic<int> long_ones{0};  // which are computed in slices
};

// The requests of one thread, sometimes each alone, sometimes beside hundreds.
void SubmitSome(uint32_t first, const std::vector<std::string>& alone, BufferPool& pool,
                Clock& clock, Scheduler& scheduler, Counts& counts) {
  std::mt19937 random(first);
  for (uint32_t seed = first; seed < kRequests; seed += kThreads) {
    std::unique_ptr<Request> request = RandomRequest(pool, seed);
    request->arrival = clock.Now();
    const AttentionProblem& problem = request->problems[0].problem;
    const bool can_be_cut = problem.batch * problem.kv_heads > 1;
    const auto job = std::make_shared<Job>(
        std::move(request), [&, seed](Job&, const absl::StatusOr<Answer>& answer, Stage) {
          if (!answer.ok() || Bits(answer->o, answer->lse) != alone[seed]) ++counts.wrong;
          if (answer.ok() && answer->batch_size > 1) ++counts.beside_others;
          ++counts.ended;
        });
    ASSERT_TRUE(scheduler.Submit(job).ok());
    if (can_be_cut && job->predicted() > scheduler.max_batch_time()) ++counts.long_ones;
    const int behind = static_cast<int>(random() % 200);
    while (scheduler.queued_requests() > behind) std::this_thread::yield();
  }
}

TEST(ExecutorBits, S38WhateverRunsBesideARequestItsBitsAreItsOwn) {
  BufferPool pool(int64_t{256} << 20);
  auto device = CreateCpuDevice("", 2);
  ASSERT_TRUE(device.ok());
  const std::vector<std::string> alone = AllAlone(**device, pool);
  for (const bool in_slices : {false, true}) {
    SteadyClock clock;
    Metrics metrics;
    Counts counts;
    Scheduler scheduler({.max_batch_problems = 16, .max_slice_us = in_slices ? 40 : 0}, &clock,
                        &metrics);
    auto executor = std::make_unique<Executor>(ExecutorOptions(), &scheduler, device->get(), &pool,
                                               &clock, &metrics);
    std::vector<std::thread> threads;
    for (uint32_t first = 0; first < kThreads; ++first) {
      threads.emplace_back(
          [&, first] { SubmitSome(first, alone, pool, clock, scheduler, counts); });
    }
    for (std::thread& thread : threads) thread.join();
    scheduler.Drain();
    executor.reset();
    EXPECT_EQ(counts.ended, kRequests);
    EXPECT_EQ(counts.wrong, 0);
    EXPECT_GT(in_slices ? counts.long_ones : counts.beside_others, kRequests / 20);
  }
}

}  // namespace
}  // namespace attnd::server
