// The steps that every request takes, whichever call brought it, and how its end is counted.
#ifndef ATTND_SERVER_SERVICES_REQUEST_STEPS_H_
#define ATTND_SERVER_SERVICES_REQUEST_STEPS_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "server/job.h"
#include "server/request.h"
#include "server/services/call_facts.h"
#include "server/services/compute_parts.h"

namespace attnd::server {

// Up to this size a message is copied on its connection's thread: it lies in this processor's
// cache, and another thread would wake up tens of microseconds later and take three times as long.
inline constexpr int64_t kInlineBytes = int64_t{2} << 20;
// And this much even by a thread that is behind with its work (IoLane::HasTime).
inline constexpr int64_t kAlwaysInlineBytes = int64_t{64} << 10;
// Whether a message is copied by this thread, its connection's.
bool IsCopiedHere(int64_t bytes);
// How long a job may be predicted to take that this thread is to compute (Dispatcher::Submit):
// about as long as it takes to wake the device's thread, which has nothing of it in its cache, and
// then another one that sends the answer.
Duration MostComputedHere();
// Up to this size an answer is handed to gRPC by the thread that has it: to wake a sender costs
// more than to write it to the socket.
inline constexpr int64_t kSmallAnswerBytes = int64_t{64} << 10;
// Whether this thread hands it over: a connection's may, up to kInlineBytes.
bool IsSentHere(int64_t bytes);
// For refusals that a little patience cures; about the time of a mid-sized batch.
inline constexpr int64_t kBusyPushbackMs = 100;

// RESOURCE_EXHAUSTED that kBusyPushbackMs may cure.
absl::Status Busy(absl::string_view message);

// Whether room in the pool may cure it.
bool IsForWantOfRoom(const absl::Status& status);

// An upper bound of what three payloads of this size together take of `pool`.
int64_t UpperBlockBytes(const BufferPool& pool, int64_t payload_bytes);

// Repeats `attempt` until it is not for want of memory that it fails. A full pool empties itself as
// answers are computed, so the call waits for its turn here, and those behind it wait for it.
// `needed_bytes` gives an upper bound of what the attempt takes of the payload pool; `gone` is OK,
// or why nobody waits for the answer any more.
absl::Status WhenRoom(const ComputeParts& parts, const std::function<int64_t()>& needed_bytes,
                      TimePoint deadline, const std::function<absl::Status()>& gone,
                      const std::function<absl::Status()>& attempt);

// Fills in what the call knows, and refuses what can never be served.
absl::Status CompleteRequest(const ComputeParts& parts, const Caller& caller, TimePoint deadline,
                             Request& request);

// An answer that has been computed, and gets its total time. `transport` as metrics name it.
void CountAnswer(const ComputeParts& parts, const char* transport, const Request& request,
                 const Metadata& metadata, Answer& answer);

// A request that ended with `status`, which is no OK, in this stage, `after` its headers.
void CountFailure(const ComputeParts& parts, const absl::Status& status, Stage stage,
                  Duration after, const Metadata& metadata);

// Of a call that was cancelled, by its caller or by gRPC at its deadline.
absl::Status WhyGone(const Clock& clock, TimePoint deadline);

}  // namespace attnd::server

#endif  // ATTND_SERVER_SERVICES_REQUEST_STEPS_H_
