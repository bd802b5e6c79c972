#include "server/executor/executor.h"

#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <list>
#include <semaphore>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/executor/give_way.h"

namespace attnd::server {
namespace {

// How long the executor waits for memory before it looks at the queue again, whose head may have
// been cancelled or may have expired meanwhile, or which may have been stopped.
constexpr std::chrono::milliseconds kMemoryRetry{10};

// While batches are under way, the device is looked at this often without a pause: a look costs a
// microsecond or two, so that small batches, whose stages take tens, are not slept through ...
constexpr int kSpinLooks = 64;
// ... and then with naps of this length, which cost a percent or two of a processor and hold up the
// next stage by less than a tenth of the millisecond that large batches take for one. A callback of
// the driver would come no sooner, and would hold up the stream that it stands in. Linux lets naps
// take 50 us longer than asked, to wake several threads at once, unless it is told not to.
constexpr microseconds kNap{25};
constexpr unsigned long kTimerSlackNs = 1000;

// After its last batch a GPU's executor looks for the next one this often, half a millisecond or
// so, before it sleeps: to be woken takes 20 to 70 us. ExecutorOptions::busy_poll makes both
// longer.
constexpr int kIdleLooks = 2000;

// Long batches that take turns, a slice each: more would only all end later.
constexpr int kMostInSlices = 2;

struct StageStep {
  Stage stage;
  int64_t Timing::*time_us;
};

constexpr StageStep kSteps[] = {
    {Stage::kUpload, &Timing::upload_us},
    {Stage::kRun, &Timing::run_us},
    {Stage::kDownload, &Timing::download_us},
};

// A batch under way.
struct BatchRun {
  uint64_t id = 0;
  TimePoint start;
  int64_t size = 0;  // requests that ran together, ...
  double fill = 0;   // ... how near they were to a limit, ...
  Work work;         // ... what they asked for, ...
  Duration predicted{};
  Duration busy{};  // ... and how long the busiest stage so far was theirs alone
  Timing timing;    // upload, run, download
  const StageStep* step = std::begin(kSteps);
  bool begun = false;  // the step
  TimePoint begun_at;
  TimePoint retry_at = TimePoint::min();  // if the device had no room for the step
  RunningBatch batch;
};

// How a look at a batch ended.
enum class Look { kNothingNew, kProgress, kEnded };

// Finishes those that no longer count, and moves them to `ended`. `stage` is the one they have been
// through.
void EndCancelledAndExpired(RunningBatch& batch, TimePoint now, Stage stage) {
  const auto counts = [&](const RunningJob& running) {
    if (running.job->cancelled()) {
      running.job->Finish(absl::CancelledError("the caller cancelled"), stage);
      return false;
    }
    if (running.job->request().deadline <= now) {
      running.job->Finish(absl::DeadlineExceededError(
                              absl::StrCat("the deadline passed in stage ", StageName(stage))),
                          stage);
      return false;
    }
    return true;
  };
  const auto gone = std::stable_partition(batch.jobs.begin(), batch.jobs.end(), counts);
  std::move(gone, batch.jobs.end(), std::back_inserter(batch.ended));
  batch.jobs.erase(gone, batch.jobs.end());
}

void FinishAll(const RunningBatch& batch, const absl::Status& status, Stage stage) {
  for (const RunningJob& running : batch.jobs) running.job->Finish(status, stage);
}

int64_t AnswerBlockBytes(const Request& request, const BufferPool& pool) {
  const OutputSpec& output = request.output;
  return pool.BlockBytes(output.sent_o_bytes()) + pool.BlockBytes(output.sent_lse_bytes());
}

// Where an output goes.
absl::StatusOr<Buffer> OutputBuffer(unsigned char* place, int64_t size_bytes, BufferPool& pool) {
  if (place != nullptr) return Buffer::Lend(place, size_bytes);
  return pool.Allocate(size_bytes);
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
        thread_([this] {
          if (device_->runs_anywhere()) GiveWay();  // a device of processors: it computes here
          Loop();
        }) {}

  ~Impl() { thread_.join(); }

  bool RunHere(const JobPtr& job, Duration at_most) {
    if (!device_->runs_anywhere() || !turn_.try_acquire()) return false;
    absl::optional<Batch> batch;
    if (lost_.ok() && !without_memory_) batch = scheduler_->TakeAlone(job, at_most);
    if (batch) {
      Take(*std::move(batch));
      while (lost_.ok() && !under_way_.empty()) LookAtAll();
      // The thread hears of it by that, and does the rest.
      if (!lost_.ok()) scheduler_->Stop(LostStatus());
    }
    turn_.release();
    return batch.has_value();
  }

 private:
  void Loop() {
    prctl(PR_SET_TIMERSLACK, kTimerSlackNs);  // were it refused, naps would only be longer
    turn_.acquire();
    int idle_looks = 0;
    while (lost_.ok() && Fill()) {
      if (LookAtAll()) {
        idle_looks = 0;
        StayAwake();
      } else if (!under_way_.empty() && ++idle_looks > kSpinLooks &&
                 clock_->Now() >= asleep_from_) {
        Nap();
      }
    }
    if (!lost_.ok()) LoseDevice();
    turn_.release();
  }

  // From something new on.
  void StayAwake() {
    if (options_.busy_poll > Duration::zero()) asleep_from_ = clock_->Now() + options_.busy_poll;
  }

  // The next batch; others may have the turn meanwhile.
  absl::optional<Batch> WaitForBatch() {
    turn_.release();
    absl::optional<Batch> batch;
    if (device_->max_batches() > 1) {
      for (int look = 0; !batch && (look < kIdleLooks || clock_->Now() < asleep_from_); ++look) {
        if (scheduler_->draining()) break;
        std::this_thread::yield();
        batch = scheduler_->NextBatchBefore(TimePoint::min());
      }
    }
    if (!batch) batch = scheduler_->NextBatch();
    turn_.acquire();
    return batch;
  }

  // Takes batches while there is room for more. Waits for one, or for memory for one, only where
  // none is under way. False if there will be no more.
  bool Fill() {
    while (lost_.ok() && HasRoom()) {
      if (without_memory_ && under_way_.empty()) {
        pool_->WaitForRelease(releases_seen_, *clock_, retry_at_);
      } else if (without_memory_ && pool_->releases() == releases_seen_ &&
                 clock_->Now() < retry_at_) {
        return true;
      }
      without_memory_ = false;
      absl::optional<Batch> batch = under_way_.empty()
                                        ? WaitForBatch()
                                        : scheduler_->NextBatchBefore(TimePoint::min(), Longest());
      if (!batch) return !under_way_.empty();
      Take(*std::move(batch));
    }
    return true;
  }

  static bool IsInSlices(const BatchRun& run) { return run.batch.in_slices; }
  int64_t InSlices() const {
    return std::count_if(under_way_.begin(), under_way_.end(), IsInSlices);
  }

  // Batches in slices leave room for others between their slices, ...
  bool HasRoom() const {
    return static_cast<int64_t>(under_way_.size()) - InSlices() < device_->max_batches();
  }
  // ... so that a short request waits for a slice, but once there are kMostInSlices of them for no
  // further long one.
  Duration Longest() const {
    return InSlices() < kMostInSlices ? Duration::max() : scheduler_->max_batch_time();
  }

  void Take(Batch batch) {
    releases_seen_ = pool_->releases();
    retry_at_ = clock_->Now() + kMemoryRetry;
    std::vector<JobPtr> without_memory;
    BatchRun run;
    run.id = batch.id;
    run.fill = scheduler_->FillOf(batch.jobs);
    run.batch.max_slice = scheduler_->max_batch_time();
    run.batch.jobs = GiveMemory(std::move(batch.jobs), without_memory);
    without_memory_ = !without_memory.empty();
    if (without_memory_) scheduler_->Requeue(without_memory);
    if (run.batch.jobs.empty()) return;
    run.start = clock_->Now();
    under_way_.insert(std::find_if(under_way_.begin(), under_way_.end(), IsInSlices),
                      std::move(run));
  }

  // Until the device may have news; a batch that comes first is taken.
  void Nap() {
    const TimePoint until = clock_->Now() + kNap;
    if (HasRoom() && !without_memory_) {
      absl::optional<Batch> batch = scheduler_->NextBatchBefore(until, Longest());
      if (batch) return Take(*std::move(batch));
    }
    MutexLock lock(nap_mutex_);
    if (clock_->Now() < until) clock_->WaitUntil(never_, nap_mutex_, until);
  }

  // Moves every batch on as far as it goes now, but computes one slice at most, of the batch that
  // has waited for its turn the longest. False if nothing moved.
  bool LookAtAll() {
    bool moved = false;
    for (auto run = under_way_.begin(); run != under_way_.end() && lost_.ok();) {
      const bool was_in_slices = run->batch.in_slices;
      Look look = LookAt(*run);
      while (look == Look::kProgress && !run->batch.in_slices) {
        moved = true;
        look = LookAt(*run);
      }
      if (look == Look::kEnded) {
        moved = true;
        run = under_way_.erase(run);
        // What it held may be what another waits for.
        without_memory_ = false;
        for (BatchRun& other : under_way_) other.retry_at = TimePoint::min();
        if (was_in_slices) return true;
      } else if (run->batch.in_slices) {
        under_way_.splice(under_way_.end(), under_way_, run);
        return true;
      } else {
        ++run;
      }
    }
    return moved;
  }

  // One step of one batch: begins a stage, or sees that it is done.
  Look LookAt(BatchRun& run) {
    if (!run.begun) return BeginStep(run);
    const bool in_slices = run.batch.in_slices;
    const TimePoint slice_at = in_slices ? clock_->Now() : TimePoint();
    if (in_slices) {
      EndCancelledAndExpired(run.batch, slice_at, Stage::kRun);
      if (run.batch.jobs.empty()) return Look::kEnded;
    }
    const absl::StatusOr<bool> done = device_->Done(run.batch);
    if (!done.ok()) return Fail(run, done.status());
    if (in_slices) run.busy += clock_->Now() - slice_at;
    if (!*done) return Look::kNothingNew;
    const TimePoint now = clock_->Now();
    run.timing.*run.step->time_us = ToMicroseconds(now - run.begun_at);
    // A stage that had to wait for that of the batch before was not this batch's alone.
    TimePoint& free_at = free_at_[run.step - std::begin(kSteps)];
    if (!in_slices) run.busy = std::max(run.busy, now - std::max(run.begun_at, free_at));
    free_at = now;
    if (run.step->stage == Stage::kRun) ObserveRun(run, now);
    run.begun = false;
    if (++run.step != std::end(kSteps)) return Look::kProgress;
    for (RunningJob& answered : run.batch.jobs) FinishWithAnswer(run, answered);
    return Look::kEnded;
  }

  Look BeginStep(BatchRun& run) {
    const TimePoint now = clock_->Now();
    if (now < run.retry_at) return Look::kNothingNew;
    const Stage passed =
        run.step == std::begin(kSteps) ? Stage::kQueue : std::prev(run.step)->stage;
    EndCancelledAndExpired(run.batch, now, passed);
    if (run.batch.jobs.empty()) return Look::kEnded;
    if (run.step->stage == Stage::kRun) Sum(run);
    const absl::Status status = device_->Begin(run.step->stage, run.batch);
    if (absl::IsUnavailable(status)) {
      run.retry_at = now + kMemoryRetry;
      return Look::kNothingNew;
    }
    // Now, for a batch in slices may end in between.
    if (run.step->stage == Stage::kRun) metrics_->ObserveBatch(run.size, run.fill);
    if (!status.ok()) return Fail(run, status);
    run.begun = true;
    run.begun_at = now;
    if (run.batch.in_slices) run.busy = clock_->Now() - now;
    return Look::kProgress;
  }

  Look Fail(BatchRun& run, const absl::Status& status) {
    FinishAll(run.batch, status, run.step->stage);
    if (absl::IsInternal(status)) lost_ = status;
    return Look::kEnded;
  }

  // Gives each job its memory, in order, up to the first that the pool or the device has no room
  // for: it and those after it are left in `without_memory`, so that small ones do not pass a large
  // one for ever. Jobs that can never fit are finished.
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

  // Moves the job to `running`, with its memory, or finishes it; false if there is no room now.
  bool Allocate(const JobPtr& job, std::vector<RunningJob>& running) {
    const Request& request = job->request();
    // First, as taking O and giving it back for want of LSE would look like a release to wait for.
    if (AnswerBlockBytes(request, *pool_) > pool_->budget_bytes() - pool_->used_bytes()) {
      return false;
    }
    const OutputSpec& output = request.output;
    absl::StatusOr<Buffer> o = OutputBuffer(output.o_place, output.o_bytes, *pool_);
    absl::StatusOr<Buffer> lse = OutputBuffer(output.lse_place, output.lse_bytes, *pool_);
    if (!o.ok() || !lse.ok()) {
      o = Buffer();
      releases_seen_ = pool_->releases();  // this one's own is none to wait for
      return false;
    }
    RunningJob with_memory{job, *std::move(o), *std::move(lse), ""};
    const absl::Status reserved = device_->Reserve(with_memory);
    if (absl::IsUnavailable(reserved)) {
      with_memory = RunningJob();
      releases_seen_ = pool_->releases();
      return false;
    }
    if (reserved.ok()) {
      running.push_back(std::move(with_memory));
    } else {
      job->Finish(reserved, Stage::kQueue);
      if (absl::IsInternal(reserved)) lost_ = reserved;
    }
    return true;
  }

  // What is about to run.
  static void Sum(BatchRun& run) {
    run.size = static_cast<int64_t>(run.batch.jobs.size());
    run.work.Clear();
    run.predicted = Duration::zero();
    for (const RunningJob& running : run.batch.jobs) {
      run.work.Add(running.job->request());
      run.predicted += running.job->predicted();
    }
  }

  void ObserveRun(const BatchRun& run, TimePoint now) {
    scheduler_->costs().Observe(run.work, run.busy, now);
    const auto seconds = [](Duration d) { return std::chrono::duration<double>(d).count(); };
    metrics_->ObservePrediction(seconds(run.predicted), seconds(run.busy));
    std::set<std::string> kernels;
    for (const RunningJob& running : run.batch.jobs) {
      if (!running.kernel.empty()) kernels.insert(running.kernel);
    }
    for (const std::string& kernel : kernels) {
      metrics_->ObserveKernel(kernel, static_cast<double>(run.timing.run_us) * 1e-6);
    }
  }

  void FinishWithAnswer(const BatchRun& run, RunningJob& done) {
    const TimePoint arrival = done.job->request().arrival;
    const OutputSpec& output = done.job->request().output;
    Answer answer;
    if (output.o_place == nullptr) answer.o = std::move(done.o);
    if (output.lse_place == nullptr) answer.lse = std::move(done.lse);
    answer.timing = run.timing;
    answer.timing.queue_us = ToMicroseconds(run.start - arrival);
    answer.timing.total_us = ToMicroseconds(clock_->Now() - arrival);
    answer.backend = device_->Describe().backend;
    answer.kernel = std::move(done.kernel);
    answer.device = device_->Describe().id;
    answer.batch_id = run.id;
    answer.batch_size = run.size;
    done.job->GiveInputsBack();
    done.job->Finish(std::move(answer), Stage::kDone);
  }

  absl::Status LostStatus() const {
    return absl::UnavailableError(absl::StrCat("device ", device_->Describe().id,
                                               " was lost: ", std::string(lost_.message())));
  }

  void LoseDevice() {
    const absl::Status unavailable = LostStatus();
    for (const BatchRun& run : under_way_) FinishAll(run.batch, unavailable, run.step->stage);
    under_way_.clear();
    scheduler_->Stop(unavailable);
    if (options_.on_device_lost) options_.on_device_lost(lost_);
  }

  const ExecutorOptions options_;
  Scheduler* const scheduler_;
  Device* const device_;
  BufferPool* const pool_;
  Clock* const clock_;
  Metrics* const metrics_;
  // Whose turn it is to work the device, which has all that follows: the thread's, but while it
  // waits for a batch with none under way. No mutex: a job's end, with the turn taken, may bring
  // the next one.
  std::binary_semaphore turn_{1};
  std::list<BatchRun> under_way_;  // in the order of beginning
  // When each stage was last seen done, by whichever batch.
  std::array<TimePoint, std::size(kSteps)> free_at_{};
  absl::Status lost_;                         // not OK: the device is
  TimePoint asleep_from_ = TimePoint::min();  // until then it looks without a pause
  bool without_memory_ = false;               // jobs had to go back to the queue; wait, ...
  uint64_t releases_seen_ = 0;                // ... until the pool's releases differ from this, ...
  TimePoint retry_at_;                        // ... or until this
  Mutex nap_mutex_;
  CondVar never_;       // notified
  std::thread thread_;  // last: starts when the rest is there
};

Executor::Executor(const ExecutorOptions& options, Scheduler* scheduler, Device* device,
                   BufferPool* pool, Clock* clock, Metrics* metrics)
    : impl_(std::make_unique<Impl>(options, scheduler, device, pool, clock, metrics)) {}

Executor::~Executor() = default;

bool Executor::RunHere(const JobPtr& job, Duration at_most) { return impl_->RunHere(job, at_most); }

}  // namespace attnd::server
