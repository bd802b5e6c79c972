// A request on its way through the server, with the one promise that matters: it ends exactly once.
#ifndef ATTND_SERVER_JOB_H_
#define ATTND_SERVER_JOB_H_

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "server/request.h"

namespace attnd::server {

// Where a job was when it ended; a metric label.
enum class Stage { kReceive, kQueue, kUpload, kRun, kDownload, kDone };

const char* StageName(Stage stage);

// Invariants.
//  1. `done` is called exactly once: by the first Finish(); later ones do nothing and return false.
//  2. A job destroyed unfinished finishes with INTERNAL, so that a lost one shows.
//  3. Regions that the request leases are its caller's again before `done` hears of an answer,
//     which is an error if one of them lost pages, or of an end in the queue or before. A job that
//     fails later keeps them until it is destroyed, for a device may still be using them.
// Thread-safe.
class Job {
 public:
  // Called on whichever thread ends the job; must not block, and must not call into the scheduler.
  using Done = std::function<void(Job& job, absl::StatusOr<Answer> answer, Stage stage)>;

  Job(std::unique_ptr<Request> request, Done done);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const Request& request() const { return *request_; }

  // Called as the job ends, before `done`. For whoever hands the job on, before doing so; once.
  using AtEnd = std::function<void()>;
  void SetAtEnd(AtEnd at_end) { at_end_ = std::move(at_end); }

  // Device time that it will take, about; by the scheduler, before it is queued.
  void SetPredicted(Duration predicted) { predicted_ = predicted; }
  Duration predicted() const { return predicted_; }

  // Gives the memory of q, k and v back, whose sizes stay: an answer on its way needs them no more,
  // and its caller's next request may be here before this job is gone. By whoever finishes it with
  // an answer, before it does.
  void GiveInputsBack();

  bool Finish(absl::StatusOr<Answer> answer, Stage stage);
  bool finished() const { return finished_.load(std::memory_order_acquire); }

  // The caller went away or gave up. Scheduler::Cancel takes a queued job out at once; a running
  // one ends as CANCELLED at its next stage.
  void RequestCancel() { cancelled_.store(true, std::memory_order_release); }
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

 private:
  const std::unique_ptr<Request> request_;
  Done done_;
  AtEnd at_end_;
  Duration predicted_{};
  std::atomic<bool> finished_{false};
  std::atomic<bool> cancelled_{false};
};

using JobPtr = std::shared_ptr<Job>;

}  // namespace attnd::server

#endif  // ATTND_SERVER_JOB_H_
