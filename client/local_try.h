// A try over the side socket of a server on this host: a packet each way, no gRPC.
#ifndef ATTND_CLIENT_LOCAL_TRY_H_
#define ATTND_CLIENT_LOCAL_TRY_H_

#include <chrono>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "client/call_sockets.h"
#include "client/encode.h"
#include "client/try.h"
#include "client/try_context.h"
#include "kernels/sync.h"
#include "server/regions/protocol/unique_fd.h"

namespace attnd::client {

// Whose tensors all lie in regions of one server: that server; else null. `encoded` is the request.
const LocalServer* LocalServerOf(const AttentionRequest& request, const EncodedRequest& encoded);

class LocalContext final : public TryContext {
 public:
  // `sockets` outlives it; `socket` has been taken there.
  LocalContext(CallSockets& sockets, LocalServer server, regions::UniqueFd socket)
      : sockets_(sockets), server_(std::move(server)), socket_(std::move(socket)) {}

  void Cancel() override ABSL_LOCKS_EXCLUDED(mutex_);
  ServerWord word() const override { return word_; }

 private:
  friend class LocalTry;

  int socket() const ABSL_LOCKS_EXCLUDED(mutex_);
  bool is_cancelled() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Last: the next call may use it; or, with false, nobody.
  void LetGo(bool is_usable) ABSL_LOCKS_EXCLUDED(mutex_);

  CallSockets& sockets_;
  const LocalServer server_;
  ServerWord word_;
  mutable Mutex mutex_;
  regions::UniqueFd socket_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

// `request` outlives the try. It ends by `deadline`, if there is one.
std::unique_ptr<PolledTry> NewLocalTry(
    const std::shared_ptr<LocalContext>& context, Try::End end, const EncodedRequest& request,
    absl::optional<std::chrono::steady_clock::time_point> deadline, absl::Duration busy_poll);

}  // namespace attnd::client

#endif  // ATTND_CLIENT_LOCAL_TRY_H_
