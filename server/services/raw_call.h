// A call whose messages are bytes: what is asked of gRPC for it, and the reactions to what comes.
#ifndef ATTND_SERVER_SERVICES_RAW_CALL_H_
#define ATTND_SERVER_SERVICES_RAW_CALL_H_

#include <grpcpp/generic/async_generic_service.h>

#include <atomic>
#include <functional>
#include <memory>

namespace attnd::server {

class RawCall;

// What a completion queue hands out; its address is the tag.
class Completion {
 public:
  // On the queue's thread. `ok` as gRPC says it of the operation. `this` may be gone afterwards.
  virtual void Complete(bool ok) = 0;

 protected:
  ~Completion() = default;
};

// gRPC's side of one call; made before there is one (RawServer).
class RawStream {
 public:
  RawStream() { context_.AsyncNotifyWhenDone(&over_); }
  RawStream(const RawStream&) = delete;
  RawStream& operator=(const RawStream&) = delete;

  grpc::GenericServerContext& context() { return context_; }
  grpc::GenericServerAsyncReaderWriter& operations() { return operations_; }
  // Called when gRPC's side is gone.
  void OnEnd(std::function<void()> on_end) { end_.tell = std::move(on_end); }

 private:
  friend class RawCall;

  // gRPC tells when the call is over, whoever ended it.
  struct Over final : Completion {
    void Complete(bool ok) override;
    RawCall* call = nullptr;
  };

  struct End {
    ~End() {
      if (tell) tell();
    }
    std::function<void()> tell;
  };

  End end_;  // first, so that it goes last
  Over over_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter operations_{&context_};
};

// Operations are any thread's: one read, and one write or the end, at a time. Reactions run on the
// thread of the call's queue, one after the other, which must not be kept waiting: it serves other
// calls and their connections. The call lives until OnDone has returned, at least; whoever starts
// an operation outside of a reaction holds it.
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

  const std::unique_ptr<RawStream> stream_;
  Reaction read_{this, &RawCall::ReadDone};
  Reaction written_{this, &RawCall::WriteDone};
  Reaction finished_{this, &RawCall::Finished};
  // Until 0 it is not done. From the start: its beginning, its finish, and gRPC's word that it is
  // over.
  std::atomic<int> under_way_{3};
  std::atomic<bool> cancelled_{false};
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_RAW_CALL_H_
