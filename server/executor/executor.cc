#include "server/executor/executor.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd::server {
namespace {

// How long the executor waits for memory before it looks at the queue again, whose head may have
// been cancelled or may have expired meanwhile, or which may have been stopped.
constexpr std::chrono::milliseconds kMemoryRetry{10};

struct StageStep {
  Stage stage;
  absl::Status (Device::*run)(std::vector<RunningJob>& batch);
  int64_t Timing::*time_us;
};

constexpr StageStep kSteps[] = {
    {Stage::kUpload, &Device::Upload, &Timing::upload_us},
    {Stage::kRun, &Device::Run, &Timing::run_us},
    {Stage::kDownload, &Device::Download, &Timing::download_us},
};

// What the whole batch shares.
struct BatchRun {
  uint64_t id = 0;
  TimePoint start;
  int64_t size = 0;  // requests that ran together
  Timing timing;     // upload, run, download
};

// Takes out of the batch those that no longer count. `stage` is the one they have been through.
void EndCancelledAndExpired(std::vector<RunningJob>& jobs, TimePoint now, Stage stage) {
  const auto ended = [&](RunningJob& running) {
    if (running.job->cancelled()) {
      running.job->Finish(absl::CancelledError("the caller cancelled"), stage);
      return true;
    }
    if (running.job->request().deadline <= now) {
      running.job->Finish(absl::DeadlineExceededError(
                              absl::StrCat("the deadline passed in stage ", StageName(stage))),
                          stage);
      return true;
    }
    return false;
  };
  jobs.erase(std::remove_if(jobs.begin(), jobs.end(), ended), jobs.end());
}

int64_t AnswerBlockBytes(const Request& request, const BufferPool& pool) {
  return pool.BlockBytes(request.output.o_bytes) + pool.BlockBytes(request.output.lse_bytes);
}

// OK, or that the request's answer cannot have its memory even when nothing else has any.
absl::Status CheckAnswerFits(const Request& request, const BufferPool& pool) {
  const int64_t payload_bytes =
      pool.HeldBytes(request.q) + pool.HeldBytes(request.k) + pool.HeldBytes(request.v);
  const int64_t answer_bytes = AnswerBlockBytes(request, pool);
  if (answer_bytes <= pool.budget_bytes() - payload_bytes) return absl::OkStatus();
  absl::Status status = absl::ResourceExhaustedError(
      absl::StrCat("the answer needs ", answer_bytes, " bytes beside ", payload_bytes,
                   " of payload, and the pool has ", pool.budget_bytes(), " in all"));
  SetRetryPushbackMs(status, -1);
  return status;
}

}  // namespace

class Executor::Impl {
 public:
  Impl(const ExecutorOptions& options, Scheduler* scheduler, Device* device, BufferPool* pool,
       Clock* clock, Metrics* metrics)
      : options_(options),
        scheduler_(scheduler),
        device_(device),
        pool_(pool),
        clock_(clock),
        metrics_(metrics),
        thread_([this] { Loop(); }) {}

  ~Impl() { thread_.join(); }

 private:
  void Loop() {
    while (absl::optional<Batch> batch = scheduler_->NextBatch()) {
      const uint64_t releases_seen = pool_->releases();
      std::vector<JobPtr> without_memory;
      std::vector<RunningJob> jobs = GiveMemory(std::move(batch->jobs), without_memory);
      if (!without_memory.empty()) scheduler_->Requeue(without_memory);
      without_memory.clear();
      if (jobs.empty()) {
        pool_->WaitForRelease(releases_seen, *clock_, clock_->Now() + kMemoryRetry);
        continue;
      }
      const absl::Status status = RunBatch(batch->id, jobs);
      jobs.clear();
      if (absl::IsInternal(status)) {
        LoseDevice(status);
        return;
      }
    }
  }

  // Gives each job the memory of its answer, in order, up to the first that the pool has no room
  // for: it and those after it are left in `without_memory`, so that small answers do not pass a
  // large one for ever. Jobs whose answer can never fit are finished.
  std::vector<RunningJob> GiveMemory(std::vector<JobPtr> jobs,
                                     std::vector<JobPtr>& without_memory) {
    std::vector<RunningJob> running;
    running.reserve(jobs.size());
    for (JobPtr& job : jobs) {
      const absl::Status fits = CheckAnswerFits(job->request(), *pool_);
      if (!fits.ok()) {
        job->Finish(fits, Stage::kQueue);
        continue;
      }
      if (!without_memory.empty() || !Allocate(job, running)) {
        without_memory.push_back(std::move(job));
      }
    }
    return running;
  }

  // Moves the job to `running`, with its memory; false if the pool has no room now.
  bool Allocate(JobPtr& job, std::vector<RunningJob>& running) {
    const Request& request = job->request();
    // First, as taking O and giving it back for want of LSE would look like a release to wait for.
    if (AnswerBlockBytes(request, *pool_) > pool_->budget_bytes() - pool_->used_bytes()) {
      return false;
    }
    absl::StatusOr<Buffer> o = pool_->Allocate(request.output.o_bytes);
    absl::StatusOr<Buffer> lse = pool_->Allocate(request.output.lse_bytes);
    if (!o.ok() || !lse.ok()) return false;
    running.push_back({std::move(job), *std::move(o), *std::move(lse), ""});
    return true;
  }

  // Runs the stages and ends every job. The status of the stage that failed, if one did.
  absl::Status RunBatch(uint64_t id, std::vector<RunningJob>& jobs) {
    BatchRun run;
    run.id = id;
    run.start = clock_->Now();
    Stage passed = Stage::kQueue;
    for (const StageStep& step : kSteps) {
      const TimePoint begin = clock_->Now();
      EndCancelledAndExpired(jobs, begin, passed);
      if (jobs.empty()) return absl::OkStatus();
      if (step.stage == Stage::kRun) run.size = static_cast<int64_t>(jobs.size());
      const absl::Status status = (device_->*step.run)(jobs);
      run.timing.*step.time_us = ToMicroseconds(clock_->Now() - begin);
      if (!status.ok()) {
        for (const RunningJob& failed : jobs) failed.job->Finish(status, step.stage);
        return status;
      }
      if (step.stage == Stage::kRun) ObserveRun(run, jobs);
      passed = step.stage;
    }
    for (RunningJob& done : jobs) FinishWithAnswer(run, done);
    return absl::OkStatus();
  }

  void ObserveRun(const BatchRun& run, const std::vector<RunningJob>& jobs) {
    metrics_->ObserveBatch(run.size);
    std::set<std::string> kernels;
    for (const RunningJob& running : jobs) {
      if (!running.kernel.empty()) kernels.insert(running.kernel);
    }
    for (const std::string& kernel : kernels) {
      metrics_->ObserveKernel(kernel, static_cast<double>(run.timing.run_us) * 1e-6);
    }
  }

  void FinishWithAnswer(const BatchRun& run, RunningJob& done) {
    const TimePoint arrival = done.job->request().arrival;
    Answer answer;
    answer.o = std::move(done.o);
    answer.lse = std::move(done.lse);
    answer.timing = run.timing;
    answer.timing.queue_us = ToMicroseconds(run.start - arrival);
    answer.timing.total_us = ToMicroseconds(clock_->Now() - arrival);
    answer.backend = device_->Describe().backend;
    answer.kernel = std::move(done.kernel);
    answer.device = device_->Describe().id;
    answer.batch_id = run.id;
    answer.batch_size = run.size;
    metrics_->ObserveTiming(answer.timing);
    done.job->Finish(std::move(answer), Stage::kDone);
  }

  void LoseDevice(const absl::Status& status) {
    scheduler_->Stop(absl::UnavailableError(absl::StrCat(
        "device ", device_->Describe().id, " was lost: ", std::string(status.message()))));
    if (options_.on_device_lost) options_.on_device_lost(status);
  }

  const ExecutorOptions options_;
  Scheduler* const scheduler_;
  Device* const device_;
  BufferPool* const pool_;
  Clock* const clock_;
  Metrics* const metrics_;
  std::thread thread_;  // last: starts when the rest is there
};

Executor::Executor(const ExecutorOptions& options, Scheduler* scheduler, Device* device,
                   BufferPool* pool, Clock* clock, Metrics* metrics)
    : impl_(std::make_unique<Impl>(options, scheduler, device, pool, clock, metrics)) {}

Executor::~Executor() = default;

}  // namespace attnd::server
