// One try of a call, from its first byte to its status: over gRPC, or the side socket.
#ifndef ATTND_CLIENT_TRY_H_
#define ATTND_CLIENT_TRY_H_

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/encode.h"
#include "client/try_context.h"
#include "grpcpp/support/byte_buffer.h"

namespace attnd::client {

// What a try brings home.
struct Answer {
  grpc::ByteBuffer message;                  // of a unary call
  std::shared_ptr<StreamedAnswer> streamed;  // of a stream
};

// Owned by who made it until Run, by itself from then on, and by `end` when it has ended. It is
// deleted when nobody works for it any more, and takes the message along, so that gRPC lets go of
// the payloads.
class Try {
 public:
  // Gets the try that has ended, and how: once, on a thread of gRPC's or on the one that polls. It
  // keeps alive what the try refers to.
  using End = std::function<void(std::unique_ptr<Try>, const absl::Status&)>;

  Try(std::shared_ptr<TryContext> context, End end)
      : context_(std::move(context)), end_(std::move(end)) {}
  virtual ~Try() = default;

  // Once. The try may be gone when this returns, unless it is to be polled.
  virtual void Run() = 0;
  // Once, after the end.
  virtual Answer TakeAnswer() = 0;
  // The answer is wrong, and another try's would be too.
  virtual bool IsBroken() const { return false; }

  // Shared with who may cancel it.
  const std::shared_ptr<TryContext>& context() const { return context_; }

 protected:
  // The end, after which there is no `this`: nothing else will come for it.
  void Done(const absl::Status& status) {
    const End end = std::move(end_);
    end(std::unique_ptr<Try>(this), status);
  }

 private:
  const std::shared_ptr<TryContext> context_;
  End end_;
};

// One that goes on in Poll alone, on the thread that waits for it: what comes from the server wakes
// that thread, and no other before it.
class PolledTry : public Try {
 public:
  using Try::Try;

  // True: the try has ended, and is gone. False: it has not ended by then. One thread at a time,
  // after Run; not inside of a reaction.
  virtual bool Poll(std::chrono::steady_clock::time_point until) = 0;
};

// Unary ones. A polled try looks for its answer for `busy_poll` before it sleeps.
std::unique_ptr<Try> NewUnaryTry(const std::shared_ptr<GrpcContext>& context, Try::End end,
                                 const grpc::ByteBuffer& message);
std::unique_ptr<PolledTry> NewPolledUnaryTry(const std::shared_ptr<GrpcContext>& context,
                                             Try::End end, const grpc::ByteBuffer& message,
                                             absl::Duration busy_poll);

// Streams. `expected` outlives the try. On gRPC's threads messages are copied while the next ones
// are read; a thread that polls does one after the other, and wakes up less often.
std::unique_ptr<Try> NewStreamTry(const std::shared_ptr<GrpcContext>& context, Try::End end,
                                  StreamMessages messages, const ExpectedAnswer& expected);
std::unique_ptr<PolledTry> NewPolledStreamTry(const std::shared_ptr<GrpcContext>& context,
                                              Try::End end, StreamMessages messages,
                                              const ExpectedAnswer& expected,
                                              absl::Duration busy_poll);

}  // namespace attnd::client

#endif  // ATTND_CLIENT_TRY_H_
