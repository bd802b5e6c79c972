// Who BatchQueue refuses.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/scheduler/batch_queue.h"
#include "server/scheduler/refusal.h"

namespace attnd::server {
namespace {

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
  return CheckBounds(TenantOf(request.caller.tenant), request.held_bytes(), job.predicted());
}

absl::Status BatchQueue::CheckRoom(const std::string& tenant, int64_t message_bytes) const {
  Duration predicted = CostModel::kLeast;
  if (!empty()) {
    // Twice, for those that wait have answers too.
    const double part = 2 * static_cast<double>(message_bytes) * static_cast<double>(requests()) /
                        static_cast<double>(std::max<int64_t>(bytes_, 1));
    predicted = std::max(predicted, std::chrono::duration_cast<Duration>(predicted_ / requests() *
                                                                         std::min(part, 1.0)));
  }
  return CheckBounds(TenantOf(tenant), /*bytes=*/0, predicted);
}

absl::Status BatchQueue::CheckBounds(const Tenant& tenant, int64_t bytes,
                                     Duration predicted) const {
  if (absl::Status status = CheckTotalBounds(bytes, predicted); !status.ok()) return status;
  return CheckTenantBounds(tenant, bytes, predicted);
}

absl::Status BatchQueue::CheckTotalBounds(int64_t bytes, Duration predicted) const {
  if (requests() >= options_.max_queue_requests) {
    return Full(
        Refusal::kQueueRequests, predicted_,
        absl::StrCat("the queue is full: ", requests(), " requests wait, max_queue_requests is ",
                     options_.max_queue_requests));
  }
  if (bytes > options_.max_queue_bytes - held_bytes_) {
    return Full(
        Refusal::kQueueBytes, predicted_,
        absl::StrCat("the queue is full: ", held_bytes_, " bytes wait and this request has ", bytes,
                     ", max_queue_bytes is ", options_.max_queue_bytes));
  }
  if (options_.max_queue_ms > 0 && !empty() &&
      predicted_ + predicted > std::chrono::milliseconds(options_.max_queue_ms)) {
    return Full(
        Refusal::kQueueTime, predicted_,
        absl::StrCat("the queue is full: ", ToMicroseconds(predicted_),
                     " us of device time wait and this request takes at least ",
                     ToMicroseconds(predicted), " us, max_queue_ms is ", options_.max_queue_ms));
  }
  return absl::OkStatus();
}

absl::Status BatchQueue::CheckTenantBounds(const Tenant& tenant, int64_t bytes,
                                           Duration predicted) const {
  const auto waiting = static_cast<int64_t>(tenant.order.size());
  if (waiting == 0) return absl::OkStatus();
  // Not made before it is needed: every call comes this way, and others wait for it.
  const auto who = [&] {
    return absl::StrCat("tenant ", tenant.spec.name, " has its share of the queue: ");
  };
  if (waiting >= tenant.max_requests) {
    return Full(Refusal::kTenantRequests, WaitOf(tenant),
                absl::StrCat(who(), waiting, " requests wait, its bound is ", tenant.max_requests));
  }
  if (bytes > tenant.max_bytes - tenant.held_bytes) {
    return Full(Refusal::kTenantBytes, WaitOf(tenant),
                absl::StrCat(who(), tenant.held_bytes, " bytes wait and this request has ", bytes,
                             ", its bound is ", tenant.max_bytes));
  }
  if (options_.max_queue_ms > 0 && tenant.predicted + predicted > tenant.max_predicted) {
    return Full(Refusal::kTenantTime, WaitOf(tenant),
                absl::StrCat(who(), ToMicroseconds(tenant.predicted),
                             " us of device time wait and this request takes at least ",
                             ToMicroseconds(predicted), " us, its bound is ",
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
      ToSeconds(tenant.predicted) * weights / static_cast<double>(tenant.spec.weight);
  const std::chrono::duration<double> wait(std::min(own, ToSeconds(predicted_)));
  return std::chrono::duration_cast<Duration>(wait);
}

}  // namespace attnd::server
