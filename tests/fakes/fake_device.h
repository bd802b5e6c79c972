// A device that a test plays like a puppet: it notes what it is given, stops at gates, and fails on
// order.
#ifndef ATTND_TESTS_FAKES_FAKE_DEVICE_H_
#define ATTND_TESTS_FAKES_FAKE_DEVICE_H_

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/sync.h"
#include "server/executor/device.h"
#include "tests/fakes/gate.h"

namespace attnd::fakes {

class FakeDevice final : public server::Device {
 public:
  // Called on the executor's thread at the start of a stage, before the failure is looked at.
  using Hook = std::function<void(std::vector<server::RunningJob>&)>;

  // `max_batches` above 1: stages are done when a test says so (Pass).
  explicit FakeDevice(int max_batches = 1) : max_batches_(max_batches) {
    description_.id = "fake";
    description_.name = "a puppet";
    description_.backend = "fake_backend";
  }

  void OnStage(server::Stage stage, Hook hook) {
    MutexLock lock(mutex_);
    hooks_[stage] = std::move(hook);
  }
  // From now on the stage returns this.
  void Fail(server::Stage stage, absl::Status status) {
    MutexLock lock(mutex_);
    failures_[stage] = std::move(status);
  }
  void StopFailing() {
    MutexLock lock(mutex_);
    failures_.clear();
  }

  // The batch whose first request this is may be seen done with this many more stages.
  void Pass(const std::string& id, int stages = 1) {
    MutexLock lock(mutex_);
    passes_[id] += stages;
  }
  // The batch whose first request this is runs in so many slices, the first as the stage begins.
  void Slice(const std::string& id, int slices) {
    MutexLock lock(mutex_);
    slices_[id] = slices;
  }
  // From now on every other look sees the stage done.
  void PassSometimes() {
    MutexLock lock(mutex_);
    pass_sometimes_ = true;
  }
  // The stage under way of the batch whose first request this is fails.
  void FailUnderWay(const std::string& id, absl::Status status) {
    MutexLock lock(mutex_);
    lost_[id] = std::move(status);
  }
  // From now on Reserve returns this for the request; OK: no more.
  void Refuse(const std::string& id, absl::Status status) {
    MutexLock lock(mutex_);
    refusals_[id] = std::move(status);
  }
  // Waits until the executor has asked `looks` times more whether something is done.
  void WaitForLooks(int looks) {
    MutexLock lock(mutex_);
    const int until = looks_ + looks;
    while (looks_ < until) looked_.Wait(mutex_);
  }
  void WaitForLog(size_t lines) {
    MutexLock lock(mutex_);
    while (log_.size() < lines) looked_.Wait(mutex_);
  }

  // Stages so far, each as "run a,b" with the requests' ids.
  std::vector<std::string> log() const {
    MutexLock lock(mutex_);
    return log_;
  }

  const server::DeviceDescription& Describe() const override { return description_; }
  absl::Status Supports(const kernels::AttentionProblem&) const override {
    return absl::OkStatus();
  }
  int max_batches() const override { return max_batches_; }
  bool runs_anywhere() const override { return max_batches_ == 1; }
  absl::Status Reserve(server::RunningJob& running) override {
    MutexLock lock(mutex_);
    const auto refusal = refusals_.find(running.job->request().request_id);
    return refusal == refusals_.end() ? absl::OkStatus() : refusal->second;
  }
  absl::Status Begin(server::Stage stage, server::RunningBatch& batch) override {
    if (stage == server::Stage::kRun) {
      for (server::RunningJob& running : batch.jobs) {
        running.kernel = "attn_fwd_f32_d64_full_fake";
      }
      MutexLock lock(mutex_);
      batch.in_slices = slices_.count(IdOf(batch)) != 0;
    }
    return Do(stage, batch.jobs);
  }
  absl::StatusOr<bool> Done(server::RunningBatch& batch) override {
    if (batch.in_slices) return NextSlice(batch);
    MutexLock lock(mutex_);
    if (max_batches_ == 1) return true;
    ++looks_;
    looked_.NotifyAll();
    if (pass_sometimes_) return looks_ % 2 == 0;
    const std::string& id = IdOf(batch);
    if (const auto lost = lost_.find(id); lost != lost_.end()) return lost->second;
    auto& passes = passes_[id];
    if (passes == 0) return false;
    --passes;
    return true;
  }

 private:
  static const std::string& IdOf(const server::RunningBatch& batch) {
    return batch.jobs.front().job->request().request_id;
  }

  absl::StatusOr<bool> NextSlice(server::RunningBatch& batch) {
    const std::string id = IdOf(batch);
    const absl::Status status = Do(server::Stage::kRun, batch.jobs);
    if (!status.ok()) return status;
    MutexLock lock(mutex_);
    batch.in_slices = --slices_[id] > 1;
    return !batch.in_slices;
  }

  absl::Status Do(server::Stage stage, std::vector<server::RunningJob>& batch) {
    Hook hook;
    {
      MutexLock lock(mutex_);
      std::string line = server::StageName(stage);
      for (size_t i = 0; i < batch.size(); ++i) {
        line += (i == 0 ? " " : ",") + batch[i].job->request().request_id;
      }
      log_.push_back(line);
      looked_.NotifyAll();
      hook = hooks_[stage];
    }
    if (hook) hook(batch);
    MutexLock lock(mutex_);
    const auto failure = failures_.find(stage);
    return failure == failures_.end() ? absl::OkStatus() : failure->second;
  }

  const int max_batches_;
  server::DeviceDescription description_;
  mutable Mutex mutex_;
  std::vector<std::string> log_ ABSL_GUARDED_BY(mutex_);
  std::map<server::Stage, Hook> hooks_ ABSL_GUARDED_BY(mutex_);
  std::map<server::Stage, absl::Status> failures_ ABSL_GUARDED_BY(mutex_);
  CondVar looked_;  // or logged
  bool pass_sometimes_ ABSL_GUARDED_BY(mutex_) = false;
  int looks_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> slices_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> passes_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, absl::Status> lost_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, absl::Status> refusals_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attnd::fakes

#endif  // ATTND_TESTS_FAKES_FAKE_DEVICE_H_
