#include "server/services/request_steps.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/log.h"
#include "server/services/io_lane.h"

namespace attnd::server {
namespace {

// How often a decoder that waits for memory looks whether its caller is still there.
constexpr std::chrono::milliseconds kGoneCheckInterval(50);

// MostComputedHere: 1 MiB of tensors that cost little else take 100 to 200 us.
constexpr std::chrono::microseconds kMostHere(300);
constexpr std::chrono::microseconds kMostInAHurry(50);

absl::Status WithPushback(absl::Status status, int64_t pushback_ms) {
  SetRetryPushbackMs(status, pushback_ms);
  return status;
}

absl::Status DeadlinePassed() { return absl::DeadlineExceededError("the deadline passed"); }

}  // namespace

bool IsCopiedHere(int64_t bytes) {
  return bytes <= kAlwaysInlineBytes || (bytes <= kInlineBytes && IoLane::HasTime());
}

Duration MostComputedHere() { return IoLane::HasTime() ? kMostHere : kMostInAHurry; }

bool IsSentHere(int64_t bytes) {
  return bytes <= kSmallAnswerBytes || (IoLane::IsServing() && IsCopiedHere(bytes));
}

absl::Status Busy(absl::string_view message) {
  return WithPushback(absl::ResourceExhaustedError(message), kBusyPushbackMs);
}

bool IsForWantOfRoom(const absl::Status& status) {
  return absl::IsResourceExhausted(status) && !RetryPushbackMs(status);
}

// Three blocks' rounding included.
int64_t UpperBlockBytes(const BufferPool& pool, int64_t payload_bytes) {
  return std::min(pool.budget_bytes(),
                  3 * pool.BlockBytes(1) + pool.BlockBytes(payload_bytes) * 9 / 8);
}

absl::Status WhenRoom(const ComputeParts& parts, const std::function<int64_t()>& needed_bytes,
                      TimePoint deadline, const std::function<absl::Status()>& gone,
                      const std::function<absl::Status()>& attempt) {
  BufferPool& pool = *parts.payload_pool;
  for (bool may_fit = true;;) {
    const uint64_t seen = pool.releases();
    const TimePoint now = parts.clock->Now();
    if (now >= deadline) return DeadlinePassed();
    if (absl::Status status = gone(); !status.ok()) return status;
    if (may_fit) {
      absl::Status status = attempt();
      if (!IsForWantOfRoom(status)) return status;
    }
    pool.WaitForRelease(seen, *parts.clock, std::min(deadline, now + kGoneCheckInterval));
    may_fit = pool.used_bytes() + needed_bytes() <= pool.budget_bytes();
  }
}

absl::Status CompleteRequest(const ComputeParts& parts, const Caller& caller, TimePoint deadline,
                             Request& request) {
  request.caller = caller;
  request.deadline = std::min(request.deadline, deadline);
  if (parts.clock->Now() >= request.deadline) {
    return absl::DeadlineExceededError("the deadline passed before the request could be queued");
  }
  for (const ProblemSlot& slot : request.problems) {
    absl::Status status = parts.dispatcher->Supports(slot.problem);
    if (!status.ok()) return status;
  }
  const BufferPool& pool = *parts.answer_pool;
  const int64_t answer_block_bytes = pool.BlockBytes(request.output.sent_o_bytes()) +
                                     pool.BlockBytes(request.output.sent_lse_bytes());
  if (answer_block_bytes <= pool.budget_bytes()) return absl::OkStatus();
  return WithPushback(
      absl::ResourceExhaustedError(absl::StrCat(
          "the answer needs ", answer_block_bytes, " bytes of memory, this server has ",
          pool.budget_bytes(), " for answers (half of arena_bytes)")),
      -1);
}

void CountAnswer(const ComputeParts& parts, const char* transport, const Request& request,
                 const Metadata& metadata, Answer& answer) {
  answer.timing.total_us = ToMicroseconds(parts.clock->Now() - request.arrival);
  parts.metrics->ObserveTiming(answer.timing, request.priority);
  parts.metrics->CountSent(transport, request.sent_bytes());
  const int64_t read_bytes = request.payload_bytes() - request.received_bytes();
  const int64_t written_bytes = request.answer_bytes() - request.sent_bytes();
  if (read_bytes + written_bytes > 0) parts.metrics->CountRegionBytes(read_bytes, written_bytes);
  if (LogEnabled(LogLevel::kDebug)) {
    LogEvent(LogLevel::kDebug, "computed",
             {{"request_id", request.request_id},
              {"traceparent", TraceparentOf(metadata)},
              {"batch", answer.batch_id},
              {"kernel", answer.kernel},
              {"total_us", answer.timing.total_us}});
  }
}

void CountFailure(const ComputeParts& parts, const absl::Status& status, Stage stage,
                  Duration after, const Metadata& metadata) {
  parts.metrics->CountFinished(status.code(), stage);
  parts.metrics->inferences().CountFailed(after);
  // The scheduler counts its own.
  if (stage == Stage::kReceive) {
    if (const auto why = RefusalOf(status)) parts.metrics->CountRefusal(*why);
    if (RetryPushbackMs(status).value_or(-1) >= 0) parts.metrics->CountPushback();
  }
  if (absl::IsInternal(status)) {
    LogEvent(LogLevel::kError, "call_failed",
             {{"stage", StageName(stage)},
              {"traceparent", TraceparentOf(metadata)},
              {"message", status.message()}});
  } else if (LogEnabled(LogLevel::kDebug)) {
    LogEvent(LogLevel::kDebug, "call_refused",
             {{"stage", StageName(stage)},
              {"code", absl::StatusCodeToString(status.code())},
              {"traceparent", TraceparentOf(metadata)},
              {"message", status.message()}});
  }
}

absl::Status WhyGone(const Clock& clock, TimePoint deadline) {
  if (clock.Now() >= deadline) return DeadlinePassed();
  return absl::CancelledError("the caller cancelled");
}

}  // namespace attnd::server
