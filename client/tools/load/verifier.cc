#include "client/tools/load/verifier.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <utility>

namespace attnd::tools {
namespace {

absl::Duration ThreadCpuTime() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

}  // namespace

Verifier::Verifier(const Work& work) : work_(work), thread_([this] { Run(); }) {}

Verifier::~Verifier() { Finish(); }

void Verifier::Add(size_t kind, size_t variant, AttentionResult result) {
  const int64_t bytes = result.o.view().size_bytes();
  MutexLock lock(mutex_);
  if (waiting_bytes_ > 0 && waiting_bytes_ + bytes > kMostWaitingBytes) {
    ++counted_.verify_skipped;
    return;
  }
  waiting_bytes_ += bytes;
  waiting_.push_back({{kind, variant}, std::move(result), bytes});
  changed_.NotifyAll();
}

void Verifier::Finish() {
  {
    MutexLock lock(mutex_);
    finished_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status Verifier::AddTo(StepResult* result) {
  MutexLock lock(mutex_);
  result->verified = counted_.verified;
  result->verify_skipped = counted_.verify_skipped;
  result->wrong = counted_.wrong;
  result->worst_error_over_bound = counted_.worst_error_over_bound;
  result->worst_rel_error = counted_.worst_rel_error;
  result->bound = counted_.bound;
  return status_;
}

absl::Duration Verifier::cpu_time() {
  MutexLock lock(mutex_);
  return cpu_time_;
}

void Verifier::Run() {
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 19);  // a thread's, on Linux
  for (;;) {
    Answer answer;
    {
      MutexLock lock(mutex_);
      cpu_time_ = ThreadCpuTime();
      while (waiting_.empty() && !finished_) changed_.Wait(mutex_);
      if (waiting_.empty()) return;
      answer = std::move(waiting_.front());
      waiting_.pop_front();
    }
    Check(answer);
    MutexLock lock(mutex_);
    waiting_bytes_ -= answer.bytes;
  }
}

absl::StatusOr<const Expected*> Verifier::ExpectedOf(const Answer& answer) {
  if (const auto found = expected_.find(answer.question); found != expected_.end()) {
    return &found->second;
  }
  const AttentionRequest request = work_.Request(answer.question.first, answer.question.second);
  auto computed = Expected::Compute(request);
  if (!computed.ok()) return computed.status();
  const auto elems = answer.bytes / SizeBytes(request.q.dtype);
  const int64_t bytes = elems * static_cast<int64_t>(sizeof(double));
  while (!expected_order_.empty() && expected_bytes_ + bytes > kMostExpectedBytes) {
    expected_.erase(expected_order_.front().first);
    expected_bytes_ -= expected_order_.front().second;
    expected_order_.pop_front();
  }
  expected_bytes_ += bytes;
  expected_order_.emplace_back(answer.question, bytes);
  return &expected_.emplace(answer.question, *std::move(computed)).first->second;
}

void Verifier::Check(const Answer& answer) {
  const absl::StatusOr<const Expected*> expected = ExpectedOf(answer);
  const Verification checked = expected.ok() ? (*expected)->Check(answer.result) : Verification();
  MutexLock lock(mutex_);
  status_.Update(expected.status());
  if (!expected.ok()) return;
  ++counted_.verified;
  if (!checked.ok()) ++counted_.wrong;
  const double error =
      std::isnan(checked.rel_error) ? std::numeric_limits<double>::infinity() : checked.rel_error;
  const double over = error / checked.bound;
  if (counted_.bound == 0 || over > counted_.worst_error_over_bound) {
    counted_.worst_error_over_bound = over;
    counted_.worst_rel_error = error;
    counted_.bound = checked.bound;
  }
}

}  // namespace attnd::tools
