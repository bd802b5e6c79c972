#include "client/ways.h"

namespace attnd::client {
namespace {

// Up to this size an answer is copied on gRPC's own thread.
constexpr size_t kInlineBytes = size_t{2} << 20;

bool IsForRegions(const AttentionRequest& request) {
  if (NamesRegions(request)) return false;  // it has its own
  if (request.transport == Transport::kRegion) return true;
  const int64_t input_bytes =
      request.q.size_bytes() + request.k.size_bytes() + request.v.size_bytes();
  return request.transport == Transport::kAuto && input_bytes >= kRegionFromBytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StagedCall>> Stage(LocalRegions& regions,
                                                  const AttentionRequest& request,
                                                  const TimeLeft& time) {
  using Staged = std::unique_ptr<StagedCall>;
  if (absl::Status status = CheckTensors(request); !status.ok()) return status;
  if (!IsForRegions(request)) return Staged();
  absl::StatusOr<Staged> staged =
      StagedCall::Stage(regions, request, time.left().value_or(absl::InfiniteDuration()));
  if (!staged.ok() && request.transport == Transport::kAuto) return Staged();
  return staged;
}

bool GoesAnotherWay(const AttentionRequest& request, const absl::Status& status) {
  return request.transport == Transport::kAuto && absl::IsNotFound(status);
}

absl::StatusOr<AttentionResult> Decode(const ExpectedAnswer& expected, const Reply& reply) {
  if (!reply.status.ok()) return reply.status;
  absl::StatusOr<AttentionResult> result =
      reply.streamed != nullptr ? reply.streamed->Finish() : DecodeAnswer(expected, reply.message);
  if (result.ok()) {
    result->sent_bytes = reply.sent_bytes;
    result->tries = reply.failure.tries;
  }
  return result;
}

bool IsShort(const Reply& reply) {
  return reply.may_go_on_here && reply.message.Length() <= kInlineBytes;
}

void SwitchedCall::Cancel() {
  std::shared_ptr<Call> now;
  {
    MutexLock lock(mutex_);
    cancelled_ = true;
    now = now_;
  }
  if (now != nullptr) now->Cancel();
}

void SwitchedCall::SwitchTo(const std::shared_ptr<Call>& next) {
  bool cancelled = false;
  {
    MutexLock lock(mutex_);
    now_ = next;
    cancelled = cancelled_;
  }
  if (cancelled) next->Cancel();
}

}  // namespace attnd::client
