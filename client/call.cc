#include "client/call.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "client/hand_over.h"
#include "client/status.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/client_callback.h"

namespace attnd::client {
namespace {

using ::std::chrono::steady_clock;

constexpr char kMethod[] = "/attnd.v1.AttentionService/Compute";

absl::optional<steady_clock::time_point> DeadlineOf(absl::optional<absl::Duration> timeout) {
  // A century is no deadline, and does not overflow the clock.
  if (!timeout || *timeout > absl::Hours(24 * 36500)) return absl::nullopt;
  return steady_clock::now() + absl::ToChronoNanoseconds(*timeout);
}

// On gRPC's monotonic clock: a wall clock that is set does not move it.
gpr_timespec After(absl::Duration left) {
  const int64_t left_us = std::max<int64_t>(absl::ToInt64Microseconds(left), 0);
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros(left_us, GPR_TIMESPAN));
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

// Deleted by OnDone, with the context and the message, so that gRPC lets go of the payloads.
class ComputeCall::Try : public grpc::ClientUnaryReactor {
 public:
  Try(std::shared_ptr<ComputeCall> call, std::shared_ptr<grpc::ClientContext> context,
      grpc::ByteBuffer message)
      : call_(std::move(call)), context_(std::move(context)), message_(std::move(message)) {}

  void Run(std::shared_ptr<grpc::Channel> channel) {
    grpc::GenericStub stub(std::move(channel));
    stub.PrepareUnaryCall(context_.get(), kMethod, grpc::StubOptions(), &message_, &answer_, this);
    ReleaseToGrpc(this);
    StartCall();
  }

  void OnDone(const grpc::Status& status) override {
    AcquireFromGrpc(this);
    std::shared_ptr<ComputeCall> call = call_;
    const std::shared_ptr<Core> core = call->core_;
    call->OnTryDone(std::unique_ptr<Try>(this), ToAbsl(status));
    call.reset();
    core->EndTry();
  }

  const grpc::ClientContext& context() const { return *context_; }
  grpc::ByteBuffer TakeAnswer() { return std::move(answer_); }

 private:
  const std::shared_ptr<ComputeCall> call_;
  const std::shared_ptr<grpc::ClientContext> context_;
  grpc::ByteBuffer message_;
  grpc::ByteBuffer answer_;
};

ComputeCall::ComputeCall(std::shared_ptr<Core> core, EncodedRequest request,
                         absl::optional<absl::Duration> timeout, Sink sink)
    : core_(std::move(core)),
      request_(std::move(request)),
      deadline_(DeadlineOf(timeout)),
      end_(std::make_shared<End>(std::move(sink))) {}

std::shared_ptr<ComputeCall> ComputeCall::Start(std::shared_ptr<Core> core, EncodedRequest request,
                                                absl::optional<absl::Duration> timeout, Sink sink) {
  core->budget.OnCall();
  std::shared_ptr<ComputeCall> call(
      new ComputeCall(std::move(core), std::move(request), timeout, std::move(sink)));
  call->StartTry();
  return call;
}

void ComputeCall::StartTry() {
  if (DeadlineLeft() <= absl::ZeroDuration()) {
    return Finish(absl::DeadlineExceededError("the deadline passed before the call was sent"), {});
  }
  const bool bulk = request_.size_bytes() >= core_->options.bulk_bytes;
  const std::shared_ptr<grpc::Channel>& channel =
      bulk ? core_->channels.bulk : core_->channels.control;
  const auto context = std::make_shared<grpc::ClientContext>();
  if (deadline_) context->set_deadline(After(DeadlineLeft()));
  context->AddMetadata("attnd-request-bytes", absl::StrCat(request_.size_bytes()));

  std::unique_ptr<Try> next;
  {
    MutexLock lock(mutex_);
    if (end_ == nullptr) return;  // cancelled during the wait
    next = std::make_unique<Try>(shared_from_this(), context, ToMessage(request_, end_));
    context_ = context;
    ++tries_;
  }
  // Not under the lock: gRPC may call OnDone on this thread.
  core_->BeginTry();
  next.release()->Run(channel);
}

void ComputeCall::OnTryDone(std::unique_ptr<Try> done, const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    context_.reset();
  }
  absl::optional<absl::Duration> wait;
  if (!status.ok()) wait = WaitBeforeRetry(done->context(), status.code());
  grpc::ByteBuffer answer = done->TakeAnswer();
  done.reset();
  if (!wait) return Finish(status, std::move(answer));
  core_->loop.PostAt(steady_clock::now() + absl::ToChronoNanoseconds(*wait),
                     [call = shared_from_this()] { call->StartTry(); });
}

absl::optional<absl::Duration> ComputeCall::WaitBeforeRetry(const grpc::ClientContext& context,
                                                            absl::StatusCode code) {
  FailedTry failed;
  failed.code = code;
  failed.deadline_left = DeadlineLeft();
  const auto& trailers = context.GetServerTrailingMetadata();
  failed.has_version_trailer = trailers.count("attnd-version") > 0;
  if (const auto found = trailers.find("grpc-retry-pushback-ms"); found != trailers.end()) {
    failed.pushback_ms =
        ParsePushbackMs(absl::string_view(found->second.data(), found->second.size()));
  }
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
  std::shared_ptr<grpc::ClientContext> running;
  {
    MutexLock lock(mutex_);
    if (end_ == nullptr) return;
    cancelled_ = true;
    running = context_;
  }
  if (running != nullptr) {
    running->TryCancel();  // OnDone follows
  } else {
    Finish(absl::CancelledError(), {});
  }
}

void ComputeCall::Finish(absl::Status status, grpc::ByteBuffer message) {
  std::shared_ptr<End> end;
  {
    MutexLock lock(mutex_);
    if (end_ == nullptr) return;
    // Also where the try had failed by itself just before.
    if (cancelled_ && !status.ok()) status = absl::CancelledError("cancelled by the caller");
    end = std::move(end_);
    end->reply.tries = tries_;
  }
  end->reply.status = std::move(status);
  end->reply.message = std::move(message);
  end->reply.sent_bytes = request_.size_bytes();
}  // `end` goes here: the end, unless gRPC still holds a payload

absl::Duration ComputeCall::DeadlineLeft() const {
  if (!deadline_) return absl::InfiniteDuration();
  return absl::FromChrono(*deadline_ - steady_clock::now());
}

}  // namespace attnd::client
