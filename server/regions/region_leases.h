// The leases of one call.
#ifndef ATTND_SERVER_REGIONS_REGION_LEASES_H_
#define ATTND_SERVER_REGIONS_REGION_LEASES_H_

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/regions/region.h"

namespace attnd::server {

// One owner at a time.
class RegionLeases {
 public:
  void Add(RegionLease lease) { leases_.push_back(std::move(lease)); }

  // After the last access. Gives all of them back, so that the caller may use the ranges again as
  // soon as it hears of the call's end. DATA_LOSS if one of the regions is broken.
  absl::Status End() {
    absl::Status status;
    for (const RegionLease& lease : leases_) status.Update(lease.status());
    leases_.clear();
    return status;
  }

 private:
  std::vector<RegionLease> leases_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_REGIONS_REGION_LEASES_H_
