// Tries that are a stream of chunks each way.
#include <utility>

#include "absl/base/thread_annotations.h"
#include "client/hand_over.h"
#include "client/polled_queue.h"
#include "client/status.h"
#include "client/try.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/client_callback.h"
#include "kernels/sync.h"

namespace attnd::client {
namespace {

constexpr char kMethod[] = "/attnd.v1.AttentionService/ComputeStream";

// Writes and reads go on side by side, one of each at a time; a message is copied to its place
// while the next one is read. Who reads while another thread copies leaves the message to it.
class StreamTry final : public Try,
                        public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  StreamTry(const std::shared_ptr<GrpcContext>& context, End end, StreamMessages messages,
            const ExpectedAnswer& expected)
      : Try(context, std::move(end)),
        grpc_(*context),
        messages_(std::move(messages)),
        expected_(expected),
        answer_(std::make_shared<StreamedAnswer>()) {}

  void Run() override {
    grpc::GenericStub stub(grpc_.channel());
    stub.PrepareBidiStreamingCall(&grpc_.grpc(), kMethod, grpc::StubOptions(), this);
    ReleaseToGrpc(this);
    ReleaseToGrpc(&incoming_);
    StartRead(&incoming_);
    WriteNext();
    StartCall();
  }

  void OnWriteDone(bool ok) override {
    AcquireFromGrpc(&outgoing_);
    outgoing_.Clear();
    if (ok && !messages_.at_end()) return WriteNext();
    ReleaseToGrpc(&outgoing_);  // the status says why, or all is sent
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
    messages_.LetGo();
    Done(broken_.ok() ? ToAbsl(status) : broken_);
  }

  Answer TakeAnswer() override { return {{}, std::move(answer_)}; }
  bool IsBroken() const override { return !broken_.ok(); }

 private:
  void WriteNext() {
    outgoing_ = messages_.Next();
    const bool is_last = messages_.at_end();
    ReleaseToGrpc(&outgoing_);
    is_last ? StartWriteLast(&outgoing_, grpc::WriteOptions()) : StartWrite(&outgoing_);
  }
  // Takes what is in incoming_, has the next message read, and copies. False if it is wrong: no
  // more is read.
  bool CopyWhileReading() {
    AcquireFromGrpc(&incoming_);
    grpc::ByteBuffer message;
    message.Swap(&incoming_);
    ReleaseToGrpc(&incoming_);
    if (!broken_.ok()) return false;
    StartRead(&incoming_);
    broken_ = answer_->Add(expected_, message);
    if (!broken_.ok()) grpc_.Cancel();
    return true;
  }
  // Whether a message was left while this thread copied; else it copies no more.
  bool TakeLeft() {
    MutexLock lock(copying_mutex_);
    copying_ = left_;
    return std::exchange(left_, false);
  }

  GrpcContext& grpc_;
  StreamMessages messages_;
  const ExpectedAnswer& expected_;
  grpc::ByteBuffer outgoing_;
  grpc::ByteBuffer incoming_;
  // Of the thread that copies, and then of OnDone.
  std::shared_ptr<StreamedAnswer> answer_;
  absl::Status broken_;
  Mutex copying_mutex_;
  bool copying_ ABSL_GUARDED_BY(copying_mutex_) = false;
  bool left_ ABSL_GUARDED_BY(copying_mutex_) = false;  // a message in incoming_
};

// One write and one read at a time; a message is copied to its place before the next one is read.
// What is to be sent is held back until the last message, so that it leaves together and arrives
// together; of more than gRPC's write buffer (64 KiB) a part goes before.
class PolledStreamTry final : public PolledTry {
 public:
  PolledStreamTry(const std::shared_ptr<GrpcContext>& context, End end, StreamMessages messages,
                  const ExpectedAnswer& expected, absl::Duration busy_poll)
      : PolledTry(context, std::move(end)),
        grpc_(*context),
        messages_(std::move(messages)),
        expected_(expected),
        queue_(busy_poll),
        answer_(std::make_shared<StreamedAnswer>()) {}

  void Run() override {
    grpc::GenericStub stub(grpc_.channel());
    grpc_.grpc().set_initial_metadata_corked(
        true);  // it goes with the first message, without an event
    stream_ = stub.PrepareCall(&grpc_.grpc(), kMethod, queue_.grpc());
    stream_->StartCall(nullptr);
    WriteNext();
    stream_->Read(&incoming_, &incoming_);
    // What the connection takes at once is on its way before anybody waits.
    while (!messages_.at_end()) {
      const absl::optional<PolledQueue::Event> event = queue_.Next();
      if (!event) return;
      Take(*event);
    }
  }

  bool Poll(std::chrono::steady_clock::time_point until) override {
    while (!has_ended_) {
      const absl::optional<PolledQueue::Event> event = queue_.WaitForNext(until);
      if (!event) return false;
      Take(*event);
    }
    queue_.Drain();  // of a write that the server did not wait for
    stream_.reset();
    messages_.LetGo();
    Done(broken_.ok() ? ToAbsl(status_) : broken_);
    return true;
  }

  Answer TakeAnswer() override { return {{}, std::move(answer_)}; }
  bool IsBroken() const override { return !broken_.ok(); }

 private:
  void WriteNext() {
    const grpc::ByteBuffer message = messages_.Next();
    grpc::WriteOptions options;
    options.set_buffer_hint();
    if (messages_.at_end()) options.set_last_message();
    stream_->Write(message, options, &messages_);
  }

  void Take(const PolledQueue::Event& event) {
    if (event.tag == &messages_) {
      if (event.ok && !messages_.at_end()) WriteNext();  // else the status says why, or all is sent
    } else if (event.tag != &incoming_) {
      has_ended_ = true;
    } else if (event.ok && Add()) {
      stream_->Read(&incoming_, &incoming_);
    } else {
      stream_->Finish(&status_, &status_);
    }
  }

  // Whether what has come goes with the rest of the answer; else no more is read.
  bool Add() {
    broken_ = answer_->Add(expected_, incoming_);
    incoming_.Clear();
    if (!broken_.ok()) grpc_.Cancel();
    return broken_.ok();
  }

  GrpcContext& grpc_;
  StreamMessages messages_;
  const ExpectedAnswer& expected_;
  PolledQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::ByteBuffer incoming_;
  std::shared_ptr<StreamedAnswer> answer_;
  absl::Status broken_;
  grpc::Status status_;
  bool has_ended_ = false;
};

}  // namespace

std::unique_ptr<Try> NewStreamTry(const std::shared_ptr<GrpcContext>& context, Try::End end,
                                  StreamMessages messages, const ExpectedAnswer& expected) {
  return std::make_unique<StreamTry>(context, std::move(end), std::move(messages), expected);
}

std::unique_ptr<PolledTry> NewPolledStreamTry(const std::shared_ptr<GrpcContext>& context,
                                              Try::End end, StreamMessages messages,
                                              const ExpectedAnswer& expected,
                                              absl::Duration busy_poll) {
  return std::make_unique<PolledStreamTry>(context, std::move(end), std::move(messages), expected,
                                           busy_poll);
}

}  // namespace attnd::client
