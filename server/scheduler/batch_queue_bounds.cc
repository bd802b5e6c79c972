// Who BatchQueue refuses.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/scheduler/batch_queue.h"
#include "server/scheduler/refusal.h"

namespace attnd::server {
namespace {

// What is predicted counts as this much more in the bound on time, which is to hold for all but one
// in a hundred: that much longer than predicted takes what waits beside a flood (tests/load).
constexpr double kMargin = 1.2;

double ToSeconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// `share` of the bound, and never nothing.
int64_t ShareOf(int64_t bound, double share) {
  return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(bound) * share));
}

absl::Status Full(Refusal why, Duration wait, const std::string& message) {
  absl::Status status = absl::ResourceExhaustedError(message);
  SetRefusal(status, why);
  SetRetryPushbackMs(status, ToPushbackMs(wait));
  return status;
}

}  // namespace

void BatchQueue::FillInBounds() {
  double weights = 0;
  for (const auto& [name, tenant] : tenants_) weights += static_cast<double>(tenant->spec.weight);
  for (auto& [name, tenant] : tenants_) {
    const TenantSpec& spec = tenant->spec;
    const double share = static_cast<double>(spec.weight) / weights;
    tenant->max_requests = spec.max_queue_requests > 0
                               ? spec.max_queue_requests
                               : ShareOf(options_.max_queue_requests, share);
    tenant->max_bytes =
        spec.max_queue_bytes > 0 ? spec.max_queue_bytes : ShareOf(options_.max_queue_bytes, share);
    tenant->max_predicted = microseconds(ShareOf(options_.max_queue_ms * 1000, share));
  }
}

absl::Status BatchQueue::Admit(const Job& job, TimePoint now) const {
  const Request& request = job.request();
  if (job.cancelled()) return absl::CancelledError("the caller cancelled");
  if (request.deadline <= now) {
    absl::Status status =
        absl::DeadlineExceededError("the deadline had passed before the request was queued");
    SetRefusal(status, Refusal::kExpired);
    return status;
  }
  if (request.held_bytes() > options_.max_queue_bytes) {
    absl::Status status = absl::ResourceExhaustedError(
        absl::StrCat("payload and answer of ", request.held_bytes(),
                     " bytes are over max_queue_bytes ", options_.max_queue_bytes));
    SetRefusal(status, Refusal::kTooLarge);
    SetRetryPushbackMs(status, -1);
    return status;
  }
  const Tenant& tenant = TenantOf(request.caller.tenant);
  absl::Status status = CheckTotalBounds(waiting_, AmountOf(job), now);
  if (!status.ok()) return status;
  return CheckTenantBounds(tenant, tenant.waiting, AmountOf(job));
}

BatchQueue::Amount BatchQueue::Guess(int64_t message_bytes) const {
  Amount guess{1, /*bytes=*/0, CostModel::kLeast};
  if (!empty()) {
    // Twice, for those that wait have answers too.
    const double part = 2 * static_cast<double>(message_bytes) * static_cast<double>(requests()) /
                        static_cast<double>(std::max<int64_t>(bytes_, 1));
    guess.predicted = std::max(
        guess.predicted,
        std::chrono::duration_cast<Duration>(predicted() / requests() * std::min(part, 1.0)));
  }
  return guess;
}

absl::Status BatchQueue::CheckRoom(const std::string& name, int64_t message_bytes,
                                   TimePoint now) const {
  const Tenant& tenant = TenantOf(name);
  const Amount guess = Guess(message_bytes);
  absl::Status status = CheckTotalBounds(waiting_ + coming_, guess, now);
  if (!status.ok()) return status;
  return CheckTenantBounds(tenant, tenant.waiting + tenant.coming, guess);
}

absl::StatusOr<uint64_t> BatchQueue::HoldPlace(const std::string& name, int64_t message_bytes,
                                               TimePoint now) {
  while (!places_.empty() && places_.begin()->second.until <= now) LetGo(places_.begin()->first);
  if (absl::Status status = CheckRoom(name, message_bytes, now); !status.ok()) return status;
  Tenant& tenant = TenantOf(name);
  const Amount guess = Guess(message_bytes);
  for (Amount* const coming : {&coming_, &tenant.coming}) *coming += guess;
  places_[++last_place_] = {&tenant, guess, now + kPlaceHeld};
  return last_place_;
}

void BatchQueue::LetGo(uint64_t place) {
  const auto found = places_.find(place);
  if (found == places_.end()) return;
  const auto& [tenant, amount, until] = found->second;
  for (Amount* const coming : {&coming_, &tenant->coming}) *coming -= amount;
  places_.erase(found);
}

absl::Status BatchQueue::CheckTotalBounds(const Amount& there, const Amount& more,
                                          TimePoint now) const {
  const Duration wait = RunsFor(now) + AtPace(there.predicted);
  if (there.requests >= options_.max_queue_requests) {
    return Full(
        Refusal::kQueueRequests, wait,
        absl::StrCat("the queue is full: ", there.requests,
                     " requests wait, max_queue_requests is ", options_.max_queue_requests));
  }
  if (more.bytes > options_.max_queue_bytes - there.bytes) {
    return Full(
        Refusal::kQueueBytes, wait,
        absl::StrCat("the queue is full: ", there.bytes, " bytes wait and this request has ",
                     more.bytes, ", max_queue_bytes is ", options_.max_queue_bytes));
  }
  const auto life = std::chrono::duration_cast<Duration>((wait + AtPace(more.predicted)) * kMargin);
  if (options_.max_queue_ms > 0 && there.requests > 0 &&
      life > std::chrono::milliseconds(options_.max_queue_ms)) {
    return Full(Refusal::kQueueTime, wait,
                absl::StrCat("the queue is full: this request could wait and run for ",
                             ToMicroseconds(life), " us, max_queue_ms is ", options_.max_queue_ms));
  }
  return absl::OkStatus();
}

absl::Status BatchQueue::CheckTenantBounds(const Tenant& tenant, const Amount& there,
                                           const Amount& more) const {
  if (there.requests == 0) return absl::OkStatus();
  // Not made before it is needed: every call comes this way, and others wait for it.
  const auto who = [&] {
    return absl::StrCat("tenant ", tenant.spec.name, " has its share of the queue: ");
  };
  if (there.requests >= tenant.max_requests) {
    return Full(
        Refusal::kTenantRequests, WaitOf(tenant),
        absl::StrCat(who(), there.requests, " requests wait, its bound is ", tenant.max_requests));
  }
  if (more.bytes > tenant.max_bytes - there.bytes) {
    return Full(Refusal::kTenantBytes, WaitOf(tenant),
                absl::StrCat(who(), there.bytes, " bytes wait and this request has ", more.bytes,
                             ", its bound is ", tenant.max_bytes));
  }
  if (options_.max_queue_ms > 0 &&
      AtPace(there.predicted + more.predicted) > tenant.max_predicted) {
    return Full(Refusal::kTenantTime, WaitOf(tenant),
                absl::StrCat(who(), ToMicroseconds(there.predicted),
                             " us of device time wait and this request takes at least ",
                             ToMicroseconds(more.predicted), " us, its bound is ",
                             ToMicroseconds(tenant.max_predicted), " us"));
  }
  return absl::OkStatus();
}

Duration BatchQueue::WaitOf(const Tenant& tenant) const {
  double weights = 0;
  for (const auto& [name, other] : tenants_) {
    if (!other->order.empty()) weights += static_cast<double>(other->spec.weight);
  }
  const double own =
      ToSeconds(tenant.waiting.predicted) * weights / static_cast<double>(tenant.spec.weight);
  const std::chrono::duration<double> wait(std::min(own, ToSeconds(predicted())));
  return AtPace(std::chrono::duration_cast<Duration>(wait));
}

}  // namespace attnd::server
