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

namespace attnd::fakes {

class FakeDevice final : public server::Device {
 public:
  // Called on the executor's thread at the start of a stage, before the failure is looked at.
  using Hook = std::function<void(std::vector<server::RunningJob>&)>;

  FakeDevice() {
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

  // Stages so far, each as "run a,b" with the requests' ids.
  std::vector<std::string> log() const {
    MutexLock lock(mutex_);
    return log_;
  }

  const server::DeviceDescription& Describe() const override { return description_; }
  absl::Status Supports(const kernels::AttentionProblem&) const override {
    return absl::OkStatus();
  }
  absl::Status Upload(std::vector<server::RunningJob>& batch) override {
    return Do(server::Stage::kUpload, batch);
  }
  absl::Status Run(std::vector<server::RunningJob>& batch) override {
    for (server::RunningJob& running : batch) running.kernel = "attn_fwd_f32_d64_full_fake";
    return Do(server::Stage::kRun, batch);
  }
  absl::Status Download(std::vector<server::RunningJob>& batch) override {
    return Do(server::Stage::kDownload, batch);
  }

 private:
  absl::Status Do(server::Stage stage, std::vector<server::RunningJob>& batch) {
    Hook hook;
    {
      MutexLock lock(mutex_);
      std::string line = server::StageName(stage);
      for (size_t i = 0; i < batch.size(); ++i) {
        line += (i == 0 ? " " : ",") + batch[i].job->request().request_id;
      }
      log_.push_back(line);
      hook = hooks_[stage];
    }
    if (hook) hook(batch);
    MutexLock lock(mutex_);
    const auto failure = failures_.find(stage);
    return failure == failures_.end() ? absl::OkStatus() : failure->second;
  }

  server::DeviceDescription description_;
  mutable Mutex mutex_;
  std::vector<std::string> log_ ABSL_GUARDED_BY(mutex_);
  std::map<server::Stage, Hook> hooks_ ABSL_GUARDED_BY(mutex_);
  std::map<server::Stage, absl::Status> failures_ ABSL_GUARDED_BY(mutex_);
};

// Opened once; until then, Wait() blocks.
class Gate {
 public:
  void Open() {
    MutexLock lock(mutex_);
    open_ = true;
    opened_.NotifyAll();
  }
  void Wait() {
    MutexLock lock(mutex_);
    while (!open_) opened_.Wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar opened_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace attnd::fakes

#endif  // ATTND_TESTS_FAKES_FAKE_DEVICE_H_
