// The server's side for callers on its own host: the table of their memory regions, and the socket
// where they hand them in.
#ifndef ATTND_SERVER_REGION_HOST_H_
#define ATTND_SERVER_REGION_HOST_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/metrics/metrics.h"
#include "server/options.h"
#include "server/regions/region_socket.h"
#include "server/regions/region_table.h"

namespace attnd::server {

// Thread-safe, but for construction and destruction.
class RegionHost {
 public:
  // Null: the options want none, or the default path cannot be had, which is logged. `locker` as
  // RegionTable has it. Fails as RegionSocket::Listen for a path that was given.
  static absl::StatusOr<std::unique_ptr<RegionHost>> Start(const ServerOptions& options,
                                                           const std::string& instance_id,
                                                           std::shared_ptr<PageLocker> locker);

  RegionTable& table() { return *table_; }
  // New callers find no socket from here on.
  void RemovePath() const { socket_->RemovePath(); }
  // Until RemoveGauges().
  void AddMetrics(Metrics& metrics) const;

 private:
  RegionHost(std::shared_ptr<RegionTable> table, std::unique_ptr<RegionSocket> socket)
      : table_(std::move(table)), socket_(std::move(socket)) {}

  const std::shared_ptr<RegionTable> table_;
  const std::unique_ptr<RegionSocket> socket_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_REGION_HOST_H_
