#include "client/call.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "client/grpc_time.h"
#include "client/status.h"

namespace attnd::client {
namespace {

using ::std::chrono::steady_clock;

// A stream whose request and answer are no larger goes on in the thread that waits for it: 4 KiB
// each way take three quarters of the time, 1 and 4 MiB a sixth less. From 16 MiB on it gains
// nothing, as that thread copies alone; with more processors than two that begins earlier.
constexpr int64_t kMaxPolledStreamBytes = 4 * kChunkBytes;

absl::optional<steady_clock::time_point> DeadlineOf(absl::optional<absl::Duration> timeout) {
  // A century is no deadline, and does not overflow the clock.
  if (!timeout || *timeout > absl::Hours(24 * 36500)) return absl::nullopt;
  return steady_clock::now() + absl::ToChronoNanoseconds(*timeout);
}

}  // namespace

void Core::BeginTry() {
  MutexLock lock(mutex_);
  ++tries_;
}

void Core::EndTry() {
  MutexLock lock(mutex_);
  if (--tries_ == 0) no_tries_.NotifyAll();
}

void Core::Close() {
  {
    MutexLock lock(mutex_);
    while (tries_ > 0) no_tries_.Wait(mutex_);
  }
  loop.Stop();
  channels.control.reset();
  channels.bulk.reset();
}

bool ComputeCall::Poll(steady_clock::time_point until) {
  if (polled_ == nullptr) return true;
  if (!polled_->Poll(until)) return false;
  polled_ = nullptr;
  return true;
}

ComputeCall::ComputeCall(std::shared_ptr<Core> core, EncodedRequest request,
                         const ExpectedAnswer& expected, absl::optional<absl::Duration> timeout,
                         Sink sink)
    : core_(std::move(core)),
      request_(std::move(request)),
      expected_(expected),
      deadline_(DeadlineOf(timeout)),
      end_(std::make_shared<End>(std::move(sink))) {}

std::shared_ptr<ComputeCall> ComputeCall::Start(std::shared_ptr<Core> core, EncodedRequest request,
                                                const ExpectedAnswer& expected,
                                                absl::optional<absl::Duration> timeout, Sink sink,
                                                const absl::optional<Waiting>& waiting) {
  core->budget.OnCall();
  std::shared_ptr<ComputeCall> call(
      new ComputeCall(std::move(core), std::move(request), expected, timeout, std::move(sink)));
  call->StartTry(waiting);
  return call;
}

void ComputeCall::StartTry(const absl::optional<Waiting>& waiting) {
  if (DeadlineLeft() <= absl::ZeroDuration()) {
    return Finish(absl::DeadlineExceededError("the deadline passed before the call was sent"), {});
  }
  std::unique_ptr<Try> next;
  {
    MutexLock lock(mutex_);
    if (end_ == nullptr) return;  // cancelled during the wait
    next = NewTry(waiting);
    context_ = next->context();
    ++tries_;
  }
  // Not under the lock: gRPC may call OnDone on this thread.
  core_->BeginTry();
  next.release()->Run();
}

std::shared_ptr<GrpcContext> ComputeCall::NewGrpcContext() const {
  const int64_t largest_bytes =
      std::max(kMaxStreamMessageBytes, static_cast<int64_t>(request_.stream_header.size()));
  const bool bulk = request_.size_bytes() >= core_->options.bulk_bytes;
  const auto context =
      std::make_shared<GrpcContext>(bulk ? core_->channels.bulk : core_->channels.control);
  grpc::ClientContext& grpc = context->grpc();
  if (deadline_) grpc.set_deadline(FromNow(DeadlineLeft()));
  for (const auto& [name, value] : core_->options.metadata) grpc.AddMetadata(name, value);
  grpc.AddMetadata("attnd-request-bytes",
                   absl::StrCat(request_.is_stream ? largest_bytes : request_.size_bytes()));
  return context;
}

std::unique_ptr<Try> ComputeCall::NewTry(const absl::optional<Waiting>& waiting) {
  auto end = [call = shared_from_this()](std::unique_ptr<Try> done,
                                         const absl::Status& status) mutable {
    const std::shared_ptr<Core> core = call->core_;
    call->OnTryDone(std::move(done), status);
    call.reset();
    core->EndTry();
  };
  const int64_t larger_side_bytes = std::max(request_.size_bytes(), expected_.o_bytes);
  const bool may_be_polled = !request_.is_stream || larger_side_bytes <= kMaxPolledStreamBytes;
  if (waiting && may_be_polled) {
    std::unique_ptr<PolledTry> next = NewPolledTry(*waiting, end);
    polled_ = next.get();
    return next;
  }
  if (!request_.is_stream) return NewUnaryTry(NewGrpcContext(), end, ToMessage(request_, end_));
  return NewStreamTry(NewGrpcContext(), end, StreamMessages(request_, end_), expected_);
}

std::unique_ptr<PolledTry> ComputeCall::NewPolledTry(const Waiting& waiting, const Try::End& end) {
  if (waiting.local != nullptr) {
    return NewLocalTry(waiting.local, end, request_, deadline_, waiting.busy_poll);
  }
  if (!request_.is_stream) {
    return NewPolledUnaryTry(NewGrpcContext(), end, ToMessage(request_, end_), waiting.busy_poll);
  }
  return NewPolledStreamTry(NewGrpcContext(), end, StreamMessages(request_, end_), expected_,
                            waiting.busy_poll);
}

void ComputeCall::OnTryDone(std::unique_ptr<Try> done, const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    context_.reset();
  }
  const ServerWord word = done->context()->word();
  absl::optional<absl::Duration> wait;
  if (!status.ok() && !done->IsBroken()) wait = WaitBeforeRetry(word, status.code());
  Answer answer = done->TakeAnswer();
  const bool turns = TurnsToStream(word, status.code());
  const bool untouched = Learn(word);
  done.reset();
  if (turns) {
    request_.is_stream = true;
    return StartTry();
  }
  if (!wait) {
    absl::Status outcome = status;
    if (!outcome.ok() && untouched) SetUntouched(outcome);
    return Finish(std::move(outcome), std::move(answer), true);
  }
  core_->loop.PostAt(steady_clock::now() + absl::ToChronoNanoseconds(*wait),
                     [call = shared_from_this()] { call->StartTry(); });
}

bool ComputeCall::Learn(const ServerWord& word) {
  MutexLock lock(mutex_);
  failure_.from_server = word.from_server;
  failure_.pushback_ms = word.pushback_ms;
  failure_.untouched = failure_.untouched && word.untouched;
  return failure_.untouched;
}

bool ComputeCall::TurnsToStream(const ServerWord& word, absl::StatusCode code) const {
  if (request_.is_stream || request_.stream_header.empty()) return false;
  if (code != absl::StatusCode::kResourceExhausted) return false;
  return word.from_server && word.pushback_ms.value_or(0) < 0;
}

absl::optional<absl::Duration> ComputeCall::WaitBeforeRetry(const ServerWord& word,
                                                            absl::StatusCode code) {
  FailedTry failed;
  failed.code = code;
  failed.deadline_left = DeadlineLeft();
  failed.has_version_trailer = word.from_server;
  failed.pushback_ms = word.pushback_ms;
  {
    MutexLock lock(mutex_);
    if (cancelled_) return absl::nullopt;
    failed.tries = tries_;
  }
  absl::BitGen random;
  const absl::optional<absl::Duration> wait =
      RetryWait(core_->options, failed, absl::Uniform(random, 0.0, 1.0));
  if (!wait || !core_->budget.TakeRetry()) return absl::nullopt;
  return wait;
}

void ComputeCall::Cancel() {
  std::shared_ptr<TryContext> running;
  {
    MutexLock lock(mutex_);
    if (end_ == nullptr) return;
    cancelled_ = true;
    running = context_;
  }
  if (running != nullptr) {
    running->Cancel();  // its end follows
  } else {
    Finish(absl::CancelledError(), {});
  }
}

void ComputeCall::Finish(absl::Status status, Answer answer, bool in_reaction) {
  std::shared_ptr<End> end;
  {
    MutexLock lock(mutex_);
    if (end_ == nullptr) return;
    // Also where the try had failed by itself just before.
    if (cancelled_ && !status.ok()) status = absl::CancelledError("cancelled by the caller");
    end = std::move(end_);
    end->reply.failure = failure_;
    end->reply.failure.tries = tries_;
  }
  end->reply.status = std::move(status);
  end->reply.message.Swap(&answer.message);
  end->reply.streamed = std::move(answer.streamed);
  end->reply.sent_bytes = request_.size_bytes();
  // Nobody else has it, and so nobody can take a copy: it goes on this thread.
  end->reply.may_go_on_here = in_reaction && end.use_count() == 1;
}  // `end` goes here: the end, unless gRPC still holds a payload

absl::Duration ComputeCall::DeadlineLeft() const {
  if (!deadline_) return absl::InfiniteDuration();
  return absl::FromChrono(*deadline_ - steady_clock::now());
}

}  // namespace attnd::client
