// A call whose messages are bytes: what is asked of gRPC for it, and the reactions to what comes.
#ifndef ATTND_SERVER_SERVICES_RAW_CALL_H_
#define ATTND_SERVER_SERVICES_RAW_CALL_H_

#include <grpcpp/generic/async_generic_service.h>

#include <atomic>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "kernels/sync.h"
#include "server/grpc_order.h"

namespace attnd::server {

class RawCall;

// What a completion queue hands out, by its address.
class Completion {
 public:
  // For an operation; ...
  void* NewTag() {
    PassBaton(this);
    return this;
  }
  // ... and back.
  static Completion& Of(void* tag) {
    PassBaton(tag);
    return *static_cast<Completion*>(tag);
  }
  // On a thread of the queue's. `ok` as gRPC says it of the operation. `this` may be gone
  // afterwards.
  virtual void Complete(bool ok) = 0;

 protected:
  ~Completion() = default;
};

// gRPC's side of one call; made before there is one (RawServer).
class RawStream {
 public:
  RawStream() : over_(*this) { context_.AsyncNotifyWhenDone(over_.NewTag()); }
  RawStream(const RawStream&) = delete;
  RawStream& operator=(const RawStream&) = delete;

  grpc::GenericServerContext& context() { return context_; }
  grpc::GenericServerAsyncReaderWriter& operations() { return operations_; }
  // Held while the call begins, and by each of its reactions.
  Mutex& mutex() { return mutex_; }
  // Called when gRPC's side is gone.
  void OnEnd(std::function<void()> on_end) { end_.tell = std::move(on_end); }

 private:
  friend class RawCall;

  // gRPC tells when the call is over, whoever ended it.
  struct Over final : Completion {
    explicit Over(RawStream& the_stream) : stream(the_stream) {}
    void Complete(bool ok) override;
    RawStream& stream;
    // Under the stream's mutex. The word may come before there is a call.
    RawCall* call = nullptr;
    bool has_come = false;
  };

  struct End {
    ~End() {
      if (tell) tell();
    }
    std::function<void()> tell;
  };

  End end_;  // first, so that it goes last
  Mutex mutex_;
  Over over_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter operations_{&context_};
};

// Operations are any thread's: one read, and one write or the end, at a time. Reactions run one
// after the other, on the threads of the call's queue, which must not be kept waiting: they serve
// other calls and their connections. The call lives until OnDone has returned, at least; whoever
// starts an operation outside of a reaction holds it.
class RawCall {
 public:
  virtual ~RawCall() = default;
  RawCall(const RawCall&) = delete;
  RawCall& operator=(const RawCall&) = delete;

 protected:
  explicit RawCall(std::unique_ptr<RawStream> stream);
  // Last in what begins a call: before, OnDone does not come.
  void Begun();

  // False: there is no message, as the caller has closed its side or, if IsCancelled(), is gone.
  virtual void OnReadDone(bool /*ok*/) {}
  // False: the caller is gone. Not of the write that finishes the call.
  virtual void OnWriteDone(bool /*ok*/) {}
  // At most once: the caller has cancelled, or is gone, or gRPC's deadline has passed.
  virtual void OnCancel() {}
  // Once, last: the call has been finished, and nothing of it is under way.
  virtual void OnDone() = 0;

  void StartRead(grpc::ByteBuffer* message);
  void StartWrite(grpc::ByteBuffer message);
  void StartWriteAndFinish(grpc::ByteBuffer message, const grpc::Status& status);
  void Finish(const grpc::Status& status);

  grpc::GenericServerContext& context() const { return stream_->context(); }
  bool IsCancelled() const { return cancelled_; }

 private:
  friend struct RawStream::Over;

  struct Reaction final : Completion {
    Reaction(RawCall* the_call, void (RawCall::*what)(bool)) : call(the_call), react(what) {}
    void Complete(bool ok) override;
    RawCall* const call;
    void (RawCall::*const react)(bool);
  };

  void ReadDone(bool ok);
  void WriteDone(bool ok) { OnWriteDone(ok); }
  void Finished(bool) {}
  void BeOver();
  void Release();
  void* TagOf(Reaction& reaction);

  const std::unique_ptr<RawStream> stream_;
  Reaction read_{this, &RawCall::ReadDone};
  Reaction written_{this, &RawCall::WriteDone};
  Reaction finished_{this, &RawCall::Finished};
  // Until 0 it is not done. From the start: its beginning, its finish, and gRPC's word that it is
  // over.
  std::atomic<int> under_way_{3};
  std::atomic<bool> cancelled_{false};
  bool over_before_ = false;  // it had begun
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_RAW_CALL_H_
