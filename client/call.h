// One Compute call: its tries, its deadline, its end.
#ifndef ATTND_CLIENT_CALL_H_
#define ATTND_CLIENT_CALL_H_

#include <chrono>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "client/call_sockets.h"
#include "client/channel.h"
#include "client/client.h"
#include "client/encode.h"
#include "client/local_try.h"
#include "client/loop.h"
#include "client/retry.h"
#include "client/try.h"
#include "client/try_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "kernels/sync.h"

namespace attnd::client {

// What the calls of one client share. Calls hold it too, so it may outlive the client; its channels
// do not: gRPC must not destroy one on a thread of its own, for it would wait there for itself.
class Core {
 public:
  Core(const std::string& address, const ClientOptions& client_options)
      : options(client_options), channels(address), budget(client_options.retry_budget) {}

  // Around all that a try does on gRPC's threads.
  void BeginTry() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndTry() ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits until no try is left, ends the loop, closes the connections. Calls have ended, or will
  // never start another try. Not on a thread of gRPC's or the loop's.
  void Close() ABSL_LOCKS_EXCLUDED(mutex_);

  const ClientOptions options;
  Channels channels;
  RetryBudget budget;
  Loop loop;
  CallSockets call_sockets;

 private:
  Mutex mutex_;
  CondVar no_tries_;
  int64_t tries_ ABSL_GUARDED_BY(mutex_) = 0;
};

// How the first try of a call goes on whose caller waits for it.
struct Waiting {
  absl::Duration busy_poll;             // it looks for its answer so long before it sleeps
  std::shared_ptr<LocalContext> local;  // null: it goes by gRPC
};

struct Reply {
  absl::Status status = absl::CancelledError("the client was destroyed first");
  grpc::ByteBuffer message;                  // a ComputeResponse, if status is OK and there is no
  std::shared_ptr<StreamedAnswer> streamed;  // of a stream
  int64_t sent_bytes = 0;
  Failure failure;  // its number of tries counts for an answer, too
  // The sink runs in a reaction of gRPC's, from which calls may be started: what is short may be
  // done there and then.
  bool may_go_on_here = false;
};

// A call's life: a try; if it fails and retry.h allows, a wait on the loop and another try; the
// outcome; and the end, when gRPC has let go of the payloads of all tries. Only then `sink` gets
// the reply: exactly once, on whichever thread let go last, which may be deep inside gRPC, so
// `sink` only hands it on unless the reply says otherwise.
class ComputeCall : public Call, public std::enable_shared_from_this<ComputeCall> {
 public:
  using Sink = std::function<void(Reply)>;

  // With `waiting` the first try goes on in Poll alone, but for long streams. Poll is then to be
  // called until it has been true.
  static std::shared_ptr<ComputeCall> Start(std::shared_ptr<Core> core, EncodedRequest request,
                                            const ExpectedAnswer& expected,
                                            absl::optional<absl::Duration> timeout, Sink sink,
                                            const absl::optional<Waiting>& waiting = absl::nullopt);

  void Cancel() override ABSL_LOCKS_EXCLUDED(mutex_);

  // False: the first try has not ended by then. One thread at a time; not inside of a reaction.
  bool Poll(std::chrono::steady_clock::time_point until);

 private:
  // Whoever holds it keeps the call from ending: the call until it has its outcome, and each piece
  // of a message that gRPC may still read.
  struct End {
    explicit End(Sink to) : sink(std::move(to)) {}
    ~End() { sink(std::move(reply)); }
    const Sink sink;
    Reply reply;
  };

  ComputeCall(std::shared_ptr<Core> core, EncodedRequest request, const ExpectedAnswer& expected,
              absl::optional<absl::Duration> timeout, Sink sink);

  void StartTry(const absl::optional<Waiting>& waiting = absl::nullopt) ABSL_LOCKS_EXCLUDED(mutex_);
  // A polled one, where it may be, with `waiting`.
  std::unique_ptr<Try> NewTry(const absl::optional<Waiting>& waiting)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::unique_ptr<PolledTry> NewPolledTry(const Waiting& waiting, const Try::End& end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<GrpcContext> NewGrpcContext() const;
  void OnTryDone(std::unique_ptr<Try> done, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // How long to wait before the next try, if there is to be one.
  absl::optional<absl::Duration> WaitBeforeRetry(const ServerWord& word, absl::StatusCode code)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes what the server says of a try that has ended. Whether it has touched no try.
  bool Learn(const ServerWord& word) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether the server refused the message for good, and a stream may do.
  bool TurnsToStream(const ServerWord& word, absl::StatusCode code) const;
  // in_reaction: on a thread of gRPC's, outside of everything else.
  void Finish(absl::Status status, Answer answer, bool in_reaction = false)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Duration DeadlineLeft() const;

  const std::shared_ptr<Core> core_;
  EncodedRequest request_;  // changes between tries only
  const ExpectedAnswer expected_;
  const absl::optional<std::chrono::steady_clock::time_point> deadline_;
  PolledTry* polled_ = nullptr;  // of the thread that polls; null: no try of that kind is left

  Mutex mutex_;
  std::shared_ptr<End> end_ ABSL_GUARDED_BY(mutex_);             // null once there is an outcome
  std::shared_ptr<TryContext> context_ ABSL_GUARDED_BY(mutex_);  // of the running try
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  int tries_ ABSL_GUARDED_BY(mutex_) = 0;
  Failure failure_ ABSL_GUARDED_BY(mutex_);  // of the tries that have ended, but for their number
};

}  // namespace attnd::client

#endif  // ATTND_CLIENT_CALL_H_
