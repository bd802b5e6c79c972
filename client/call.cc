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
constexpr char kStreamMethod[] = "/attnd.v1.AttentionService/ComputeStream";

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

// Absent: the server has not said when to try again.
absl::optional<int64_t> PushbackMs(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find("grpc-retry-pushback-ms");
  if (found == trailers.end()) return absl::nullopt;
  return ParsePushbackMs(absl::string_view(found->second.data(), found->second.size()));
}

gpr_timespec ToGrpc(steady_clock::time_point until) {
  if (until == steady_clock::time_point::max()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  return After(absl::FromChrono(until - steady_clock::now()));
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

// Deleted when gRPC is done with it, with the context and the message, so that gRPC lets go of the
// payloads.
class ComputeCall::Try {
 public:
  Try(std::shared_ptr<ComputeCall> call, std::shared_ptr<grpc::ClientContext> context)
      : call_(std::move(call)), context_(std::move(context)) {}
  virtual ~Try() = default;

  virtual void Run(std::shared_ptr<grpc::Channel> channel) = 0;
  virtual Answer TakeAnswer() = 0;
  // The answer is wrong, and another try's would be too.
  virtual bool IsBroken() const { return false; }

  grpc::ClientContext& context() const { return *context_; }

 protected:
  const ComputeCall& call() const { return *call_; }
  void Done(const absl::Status& status) {
    std::shared_ptr<ComputeCall> call = call_;
    const std::shared_ptr<Core> core = call->core_;
    call->OnTryDone(std::unique_ptr<Try>(this), status);
    call.reset();
    core->EndTry();
  }

 private:
  const std::shared_ptr<ComputeCall> call_;
  const std::shared_ptr<grpc::ClientContext> context_;
};

class ComputeCall::UnaryTry final : public Try, public grpc::ClientUnaryReactor {
 public:
  UnaryTry(std::shared_ptr<ComputeCall> call, std::shared_ptr<grpc::ClientContext> context,
           grpc::ByteBuffer message)
      : Try(std::move(call), std::move(context)), message_(std::move(message)) {}

  void Run(std::shared_ptr<grpc::Channel> channel) override {
    grpc::GenericStub stub(std::move(channel));
    stub.PrepareUnaryCall(&context(), kMethod, grpc::StubOptions(), &message_, &answer_, this);
    ReleaseToGrpc(this);
    StartCall();
  }

  void OnDone(const grpc::Status& status) override {
    AcquireFromGrpc(this);
    Done(ToAbsl(status));
  }

  Answer TakeAnswer() override { return {std::move(answer_), nullptr}; }

 private:
  grpc::ByteBuffer message_;
  grpc::ByteBuffer answer_;
};

// The same for a thread that waits, and does so on gRPC's own queue: the answer wakes that thread,
// and no other before it. After some milliseconds of sleep a wake-up takes 100 us and more.
class ComputeCall::PolledTry final : public Try {
 public:
  PolledTry(std::shared_ptr<ComputeCall> call, std::shared_ptr<grpc::ClientContext> context,
            grpc::ByteBuffer message, absl::Duration busy_poll)
      : Try(std::move(call), std::move(context)),
        message_(std::move(message)),
        asleep_from_(steady_clock::now() + absl::ToChronoNanoseconds(busy_poll)) {}

  void Run(std::shared_ptr<grpc::Channel> channel) override {
    grpc::GenericStub stub(std::move(channel));
    reader_ = stub.PrepareUnaryCall(&context(), kMethod, message_, &queue_);
    reader_->StartCall();
    reader_->Finish(&answer_, &status_, this);
  }

  // True: the try has ended, and is gone.
  bool Poll(steady_clock::time_point until) {
    if (!WaitForOne(until)) return false;
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
    reader_.reset();
    Done(ToAbsl(status_));
    return true;
  }

  Answer TakeAnswer() override { return {std::move(answer_), nullptr}; }

 private:
  bool WaitForOne(steady_clock::time_point until) {
    using NextStatus = grpc::CompletionQueue::NextStatus;
    void* tag = nullptr;
    bool ok = false;
    NextStatus next = NextStatus::TIMEOUT;
    while (next == NextStatus::TIMEOUT && steady_clock::now() < std::min(asleep_from_, until)) {
      next = queue_.AsyncNext(&tag, &ok, gpr_inf_past(GPR_CLOCK_MONOTONIC));
    }
    if (next == NextStatus::TIMEOUT) next = queue_.AsyncNext(&tag, &ok, ToGrpc(until));
    return next != NextStatus::TIMEOUT;
  }

  grpc::ByteBuffer message_;
  const steady_clock::time_point asleep_from_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader_;
  grpc::ByteBuffer answer_;
  grpc::Status status_;
};

bool ComputeCall::Poll(steady_clock::time_point until) {
  if (polled_ == nullptr) return true;
  if (!polled_->Poll(until)) return false;
  polled_ = nullptr;
  return true;
}

// Writes and reads go on side by side, one of each at a time; a message is copied to its place
// while the next one is read. Who reads while another thread copies leaves the message to it.
class ComputeCall::StreamTry final
    : public Try,
      public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  StreamTry(std::shared_ptr<ComputeCall> call, std::shared_ptr<grpc::ClientContext> context,
            std::shared_ptr<void> keep)
      : Try(std::move(call), std::move(context)),
        keep_(std::move(keep)),
        answer_(std::make_shared<StreamedAnswer>()) {}

  void Run(std::shared_ptr<grpc::Channel> channel) override {
    grpc::GenericStub stub(std::move(channel));
    stub.PrepareBidiStreamingCall(&context(), kStreamMethod, grpc::StubOptions(), this);
    const grpc::Slice header(call().request_.stream_header);
    outgoing_ = grpc::ByteBuffer(&header, 1);
    SkipEmpty();
    ReleaseToGrpc(this);
    ReleaseToGrpc(&incoming_);
    StartRead(&incoming_);
    Write();
    StartCall();
  }

  void OnWriteDone(bool ok) override {
    AcquireFromGrpc(&outgoing_);
    outgoing_.Clear();
    if (!ok || operand_ == 3) {  // the status says why, or all is sent
      ReleaseToGrpc(&outgoing_);
      return;
    }
    const EncodedRequest& request = call().request_;
    const int64_t size_bytes =
        std::min(kChunkBytes, request.payload_bytes[operand_] - offset_bytes_);
    outgoing_ = ToChunk(request, operand_, offset_bytes_, size_bytes, keep_);
    offset_bytes_ += size_bytes;
    SkipEmpty();
    Write();
  }

  void OnReadDone(bool ok) override {
    AcquireFromGrpc(&incoming_);
    if (!ok) return ReleaseToGrpc(&incoming_);  // the status says why, or all is there
    {
      MutexLock lock(copying_mutex_);
      left_ = copying_;
      if (std::exchange(copying_, true)) return ReleaseToGrpc(&incoming_);
    }
    do {
      if (!CopyWhileReading()) return;
    } while (TakeLeft());
  }

  void OnDone(const grpc::Status& status) override {
    AcquireFromGrpc(this);
    AcquireFromGrpc(&incoming_);
    AcquireFromGrpc(&outgoing_);
    keep_.reset();
    Done(broken_.ok() ? ToAbsl(status) : broken_);
  }

  Answer TakeAnswer() override { return {{}, std::move(answer_)}; }
  bool IsBroken() const override { return !broken_.ok(); }

 private:
  // Takes what is in incoming_, has the next message read, and copies. False if it is wrong: no
  // more is read.
  bool CopyWhileReading() {
    AcquireFromGrpc(&incoming_);
    grpc::ByteBuffer message = std::move(incoming_);
    incoming_.Clear();
    ReleaseToGrpc(&incoming_);
    if (!broken_.ok()) return false;
    StartRead(&incoming_);
    broken_ = answer_->Add(call().expected_, std::move(message));
    if (!broken_.ok()) context().TryCancel();
    return true;
  }
  // Whether a message was left while this thread copied; else it copies no more.
  bool TakeLeft() {
    MutexLock lock(copying_mutex_);
    copying_ = left_;
    return std::exchange(left_, false);
  }
  // To the next byte that is to be sent.
  void SkipEmpty() {
    while (operand_ < 3 && offset_bytes_ == call().request_.payload_bytes[operand_]) {
      ++operand_;
      offset_bytes_ = 0;
    }
  }
  void Write() {
    const bool is_last = operand_ == 3;
    ReleaseToGrpc(&outgoing_);
    is_last ? StartWriteLast(&outgoing_, grpc::WriteOptions()) : StartWrite(&outgoing_);
  }

  std::shared_ptr<void> keep_;
  grpc::ByteBuffer outgoing_;
  int operand_ = 0;  // of the next chunk; 3: none
  int64_t offset_bytes_ = 0;
  grpc::ByteBuffer incoming_;
  // Of the thread that copies, and then of OnDone.
  std::shared_ptr<StreamedAnswer> answer_;
  absl::Status broken_;
  Mutex copying_mutex_;
  bool copying_ ABSL_GUARDED_BY(copying_mutex_) = false;
  bool left_ ABSL_GUARDED_BY(copying_mutex_) = false;  // a message in incoming_
};

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
                                                absl::optional<absl::Duration> busy_poll) {
  core->budget.OnCall();
  std::shared_ptr<ComputeCall> call(
      new ComputeCall(std::move(core), std::move(request), expected, timeout, std::move(sink)));
  call->StartTry(busy_poll);
  return call;
}

void ComputeCall::StartTry(absl::optional<absl::Duration> busy_poll) {
  if (DeadlineLeft() <= absl::ZeroDuration()) {
    return Finish(absl::DeadlineExceededError("the deadline passed before the call was sent"), {});
  }
  const int64_t largest_bytes =
      std::max(kMaxStreamMessageBytes, static_cast<int64_t>(request_.stream_header.size()));
  const bool bulk = request_.size_bytes() >= core_->options.bulk_bytes;
  const std::shared_ptr<grpc::Channel>& channel =
      bulk ? core_->channels.bulk : core_->channels.control;
  const auto context = std::make_shared<grpc::ClientContext>();
  if (deadline_) context->set_deadline(After(DeadlineLeft()));
  for (const auto& [name, value] : core_->options.metadata) context->AddMetadata(name, value);
  context->AddMetadata("attnd-request-bytes",
                       absl::StrCat(request_.is_stream ? largest_bytes : request_.size_bytes()));

  std::unique_ptr<Try> next;
  {
    MutexLock lock(mutex_);
    if (end_ == nullptr) return;  // cancelled during the wait
    if (request_.is_stream) {
      next = std::make_unique<StreamTry>(shared_from_this(), context, end_);
    } else if (busy_poll) {
      auto polled = std::make_unique<PolledTry>(shared_from_this(), context,
                                                ToMessage(request_, end_), *busy_poll);
      polled_ = polled.get();
      next = std::move(polled);
    } else {
      next = std::make_unique<UnaryTry>(shared_from_this(), context, ToMessage(request_, end_));
    }
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
  if (!status.ok() && !done->IsBroken()) wait = WaitBeforeRetry(done->context(), status.code());
  Answer answer = done->TakeAnswer();
  const bool turns = TurnsToStream(done->context(), status.code());
  const bool untouched = Learn(done->context());
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

bool ComputeCall::Learn(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  MutexLock lock(mutex_);
  failure_.from_server = trailers.count("attnd-version") > 0;
  failure_.pushback_ms = PushbackMs(context);
  failure_.untouched = failure_.untouched && trailers.count("attnd-untouched") > 0;
  return failure_.untouched;
}

bool ComputeCall::TurnsToStream(const grpc::ClientContext& context, absl::StatusCode code) const {
  if (request_.is_stream || request_.stream_header.empty()) return false;
  if (code != absl::StatusCode::kResourceExhausted) return false;
  return context.GetServerTrailingMetadata().count("attnd-version") > 0 &&
         PushbackMs(context).value_or(0) < 0;
}

absl::optional<absl::Duration> ComputeCall::WaitBeforeRetry(const grpc::ClientContext& context,
                                                            absl::StatusCode code) {
  FailedTry failed;
  failed.code = code;
  failed.deadline_left = DeadlineLeft();
  failed.has_version_trailer = context.GetServerTrailingMetadata().count("attnd-version") > 0;
  failed.pushback_ms = PushbackMs(context);
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
  end->reply.message = std::move(answer.message);
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
