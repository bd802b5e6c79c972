// Checks answers against fp64 while the load goes on.
#ifndef ATTND_CLIENT_TOOLS_LOAD_VERIFIER_H_
#define ATTND_CLIENT_TOOLS_LOAD_VERIFIER_H_

#include <deque>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "client/client.h"
#include "client/tools/load/step_result.h"
#include "client/tools/load/work.h"
#include "client/tools/verify.h"
#include "kernels/sync.h"

namespace attnd::tools {

// One thread, which gives way to everything else. Its memory is bounded: kMostWaitingBytes of
// answers that wait, and kMostExpectedBytes of right answers that are kept for the next one to the
// same question (one of either may be larger). Thread-safe.
class Verifier {
 public:
  static constexpr int64_t kMostWaitingBytes = int64_t{256} << 20;
  static constexpr int64_t kMostExpectedBytes = int64_t{512} << 20;

  // `work` must outlive it.
  explicit Verifier(const Work& work);
  ~Verifier();  // Finish()

  // Never waits: an answer that there is no room for is counted as skipped.
  void Add(size_t kind, size_t variant, AttentionResult result) ABSL_LOCKS_EXCLUDED(mutex_);

  // What was added has been checked when it returns; nothing may be added any more.
  void Finish() ABSL_LOCKS_EXCLUDED(mutex_);

  // After Finish(): its counts. INVALID_ARGUMENT if an answered request is no problem.
  absl::Status AddTo(StepResult* result) ABSL_LOCKS_EXCLUDED(mutex_);

  // Of its thread.
  absl::Duration cpu_time() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Question = std::pair<size_t, size_t>;
  struct Answer {
    Question question;
    AttentionResult result;
    int64_t bytes = 0;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void Check(const Answer& answer) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<const Expected*> ExpectedOf(const Answer& answer);

  const Work& work_;
  // Of the thread alone.
  std::map<Question, Expected> expected_;
  std::deque<std::pair<Question, int64_t>> expected_order_;  // oldest first, with their bytes
  int64_t expected_bytes_ = 0;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Answer> waiting_ ABSL_GUARDED_BY(mutex_);
  int64_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration cpu_time_ ABSL_GUARDED_BY(mutex_);
  StepResult counted_ ABSL_GUARDED_BY(mutex_);  // what is about verification
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace attnd::tools

#endif  // ATTND_CLIENT_TOOLS_LOAD_VERIFIER_H_
