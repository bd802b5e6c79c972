// Requests, and jobs whose end a test can watch.
#ifndef ATTND_TESTS_FAKES_REQUESTS_H_
#define ATTND_TESTS_FAKES_REQUESTS_H_

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "kernels/sync.h"
#include "server/job.h"
#include "server/memory/buffer_pool.h"

namespace attnd::fakes {

struct RequestSpec {
  std::string id{};
  int priority = 0;
  server::TimePoint arrival{};
  server::TimePoint deadline = server::kNever;
  int64_t answer_bytes = 64;
  int64_t lse_bytes = 0;
  std::string tenant = "default";
  server::Duration predicted{};  // as the scheduler would set it; it does so itself
};

// A request without problems or payload: what the queue and the executor look at.
inline std::unique_ptr<server::Request> MakeRequest(const RequestSpec& spec) {
  auto request = std::make_unique<server::Request>();
  request->request_id = spec.id;
  request->caller.tenant = spec.tenant;
  request->priority = spec.priority;
  request->arrival = spec.arrival;
  request->deadline = spec.deadline;
  request->output.o_bytes = spec.answer_bytes;
  request->output.want_lse = spec.lse_bytes > 0;
  request->output.lse_bytes = spec.lse_bytes;
  return request;
}

// A dense fp32 request of one problem [1, 1, len, head_dim], every element of q, k, v the given
// one.
inline std::unique_ptr<server::Request> MakeAttention(server::BufferPool& pool, int64_t len,
                                                      int64_t head_dim, float q, float k, float v) {
  const auto filled = [&](float value) {
    absl::StatusOr<server::Buffer> buffer = pool.Allocate(len * head_dim * 4);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    auto* const elements = reinterpret_cast<float*>(buffer->data());
    std::fill(elements, elements + len * head_dim, value);
    return *std::move(buffer);
  };
  auto request = std::make_unique<server::Request>();
  server::ProblemSlot slot;
  slot.problem = {.batch = 1,
                  .q_heads = 1,
                  .kv_heads = 1,
                  .q_len = len,
                  .kv_len = len,
                  .head_dim = head_dim,
                  .mask = {},
                  .scale = kernels::DefaultScale(head_dim)};
  slot.q_strides = slot.k_strides = slot.v_strides = slot.o_strides =
      kernels::BHSD(1, len, head_dim);
  slot.lse_batch_stride = slot.lse_head_stride = len;
  request->problems.push_back(slot);
  request->q = filled(q);
  request->k = filled(k);
  request->v = filled(v);
  request->output.o_shape = {1, 1, len, head_dim};
  request->output.o_bytes = len * head_dim * 4;
  request->output.want_lse = true;
  request->output.lse_shape = {1, 1, len};
  request->output.lse_bytes = len * 4;
  return request;
}

// A job and how it ended. Thread-safe; outlives its job's end.
class Probe {
 public:
  explicit Probe(std::unique_ptr<server::Request> request)
      : ending_(std::make_shared<Ending>()),
        job_(std::make_shared<server::Job>(
            std::move(request),
            [ending = ending_](server::Job&, absl::StatusOr<server::Answer> answer,
                               server::Stage stage) {
              MutexLock lock(ending->mutex);
              ++ending->times;
              ending->stage = stage;
              ending->status = answer.status();
              if (answer.ok()) ending->answer = *std::move(answer);
              ending->ended.NotifyAll();
            })) {}
  explicit Probe(const RequestSpec& spec) : Probe(MakeRequest(spec)) {
    job_->SetPredicted(spec.predicted);
  }

  const server::JobPtr& job() const { return job_; }
  // Leaves the job to whoever else holds it.
  void DropJob() { job_.reset(); }

  int times_ended() const {
    MutexLock lock(ending_->mutex);
    return ending_->times;
  }
  // Waits for the end. A minute without one is a failure.
  const absl::Status& status() const {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    MutexLock lock(ending_->mutex);
    while (ending_->times == 0) {
      if (!ending_->ended.WaitUntil(ending_->mutex, give_up)) {
        ADD_FAILURE() << "the job never ended";
        break;
      }
    }
    return ending_->status;
  }
  // After status().
  server::Stage stage() const {
    MutexLock lock(ending_->mutex);
    return ending_->stage;
  }
  server::Answer& answer() {
    MutexLock lock(ending_->mutex);
    return ending_->answer;
  }

 private:
  struct Ending {
    Mutex mutex;
    CondVar ended;
    int times ABSL_GUARDED_BY(mutex) = 0;
    absl::Status status ABSL_GUARDED_BY(mutex) = absl::UnknownError("not ended");
    server::Stage stage ABSL_GUARDED_BY(mutex) = server::Stage::kReceive;
    server::Answer answer ABSL_GUARDED_BY(mutex);
  };
  std::shared_ptr<Ending> ending_;
  server::JobPtr job_;
};

}  // namespace attnd::fakes

#endif  // ATTND_TESTS_FAKES_REQUESTS_H_
