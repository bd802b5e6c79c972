// One call over the side socket: a packet each way, no gRPC.
#ifndef ATTND_SERVER_SERVICES_LOCAL_CALL_H_
#define ATTND_SERVER_SERVICES_LOCAL_CALL_H_

#include <atomic>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/job.h"
#include "server/regions/protocol/frames.h"
#include "server/regions/protocol/unique_fd.h"
#include "server/services/compute_parts.h"

namespace attnd::server {

// A caller's connection; its calls and who serves it hold it.
struct LocalConnection {
  explicit LocalConnection(regions::UniqueFd fd) : socket(std::move(fd)) {}

  const regions::UniqueFd socket;    // does not block
  std::atomic<bool> is_busy{false};  // with a call, whose end has not been sent
};

// The call takes the steps of all others (request_steps.h) on the thread that serves its
// connection, for nothing of it is copied or waited for; the job's end, on whichever thread it
// comes, answers. A caller that does not read its answer loses it: it has one call at a time, so
// that the socket has room.
class LocalCall : public std::enable_shared_from_this<LocalCall> {
 public:
  // `parts` outlives the call.
  LocalCall(const ComputeParts& parts, std::shared_ptr<LocalConnection> connection)
      : parts_(parts), connection_(std::move(connection)) {}

  // `message` is a serialized ComputeRequest and is not used afterwards. A job that is predicted to
  // take no more than `most_here` may be computed here. Once; on the connection's thread, as
  // Cancel.
  void Begin(const regions::CallFrame& frame, absl::Span<const unsigned char> message,
             Duration most_here);
  // The caller is gone.
  void Cancel();

 private:
  absl::StatusOr<std::unique_ptr<Request>> Read(const regions::CallFrame& frame,
                                                absl::Span<const unsigned char> message);
  void Submit(std::unique_ptr<Request> request, Duration most_here);
  void JobDone(const Request& request, absl::StatusOr<Answer> answer, Stage stage);
  void Fail(const absl::Status& status, Stage stage);
  // The end.
  void Send(regions::CallAnswerFrame frame, absl::string_view bytes);

  const ComputeParts& parts_;
  const std::shared_ptr<LocalConnection> connection_;
  TimePoint arrival_{};
  TimePoint deadline_ = kNever;
  std::weak_ptr<Job> job_;  // the job holds the call
  std::atomic<bool> cancelled_{false};
  bool inside_gate_ = false;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_LOCAL_CALL_H_
