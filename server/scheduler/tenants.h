// Who shares the devices, and how: the tenants file.
#ifndef ATTND_SERVER_SCHEDULER_TENANTS_H_
#define ATTND_SERVER_SCHEDULER_TENANTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace attnd::server {

// Callers that no tenant is named after share this one.
inline constexpr char kDefaultTenant[] = "default";

// As many as metrics have room for; with the default one.
inline constexpr size_t kMaxTenants = 32;

struct TenantSpec {
  std::string name = kDefaultTenant;
  // Of device time, beside the other tenants that have something to run. 1 to kMaxWeight.
  int64_t weight = 1;
  // What may wait. 0: the weight's share of the whole queue's bound.
  int64_t max_queue_requests = 0;
  int64_t max_queue_bytes = 0;
};
inline constexpr int64_t kMaxWeight = 1'000'000;

// One tenant a line, its name first; # begins a comment:
//
//   # the name is what callers are known by: an IP address, unix, or what --tenant_metadata brings
//   team-a      weight=4 max_queue_requests=100 max_queue_bytes=1073741824
//   10.0.0.7
//   default     max_queue_requests=500
//
// The default tenant is added if it is not there. Names are 1 to 64 of [A-Za-z0-9._:-]. Fails with
// INVALID_ARGUMENT that tells the line.
absl::StatusOr<std::vector<TenantSpec>> ParseTenants(absl::string_view text);

// The same of a file; NOT_FOUND if it cannot be read. Errors begin with the path.
absl::StatusOr<std::vector<TenantSpec>> ReadTenants(const std::string& path);

// Whether it may be a tenant's name.
bool IsTenantName(absl::string_view name);

}  // namespace attnd::server

#endif  // ATTND_SERVER_SCHEDULER_TENANTS_H_
